"""A loss that no device could hold is refused before anything is read or compiled."""

import re
import tracemalloc
import types

import jax
import numpy as np
import pytest

from configs import audio_synthetic, image_fashion_mnist, series_ar1
from cpc.train import make_mesh
from cpc.types import Position, UserError
from experiments.kinds.image import kind as image
from experiments.kinds.image.prepare import prepare
from experiments.kinds.series import kind as series
from experiments.training import memory
from experiments.training.plan import Branch, Geometry, check_window, make_rule
from tests.plans import plan_of_offsets


@pytest.fixture
def has(monkeypatch):
    """has(bytes): every device has so many."""

    def set_bytes(num_bytes):
        monkeypatch.setattr(memory, "device_bytes", lambda mesh: num_bytes)

    return set_bytes


def make_config(**options):
    config = audio_synthetic.get_config()
    for key, value in options.items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def make_plan(config, num_offsets=12, width=512):
    return plan_of_offsets(config, tuple(range(1, num_offsets + 1)), 128, width)


def check(config, num_devices=1, num_offsets=12):
    memory.check_memory(make_plan(config, num_offsets), make_mesh(num_devices))


def refusal(config, num_offsets=12):
    with pytest.raises(UserError) as caught:
        check(config, num_offsets=num_offsets)
    return str(caught.value)


@pytest.mark.parametrize("options", [{}, {"negatives__shards": 16}, {"negatives__queue": 40_000}])
def test_the_batch_that_is_named_fits_and_the_next_does_not(has, options):
    has(2 * 10**9)
    config = make_config(data__batch_size=1024, **options)
    found = re.search(r"data\.batch_size=(\d+) fits", refusal(config))
    fits, step = int(found[1]), config.negatives.shards
    assert fits % step == 0
    for size, is_refused in ((fits, False), (fits + step, True)):
        config.data.batch_size = size
        if is_refused:
            refusal(config)
        else:
            check(config)


@pytest.mark.parametrize(("backend", "block"), [("cpu", 512), ("gpu", 4096)])
def test_an_accelerator_scores_more_anchors_at_a_time(has, monkeypatch, backend, block):
    """As many as leave 65,536 candidates' rows whole: 2^28 scores."""
    has(10**8)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert f"in blocks of {block} anchors" in refusal(make_config(data__batch_size=512))


def test_the_sentence_has_the_numbers(has):
    has(2 * 10**9)
    sentence = refusal(make_config(data__batch_size=1024, negatives__queue=1000))
    # Rows of 132,072 scores for 1,024 windows are more than 256 MB, so that a tile has 4,096.
    scores = 12 * 1024 * 4096
    keys, queries = (1024 * 128 + 1000) * 512, 12 * 1024 * 128 * 512
    needed = scores + 4 * 12 * keys + 4 * (keys + 2 * queries)
    assert f"takes {needed / 1e9:.3g} GB of a device's 2 GB" in sentence
    assert "1024 x 128 candidates and 1,000 of a queue, 512 wide, at 12 offsets" in sentence
    assert "block=" not in sentence  # smaller ones do not help: the gradients alone are too much
    assert "\n" not in sentence


def test_a_block_is_named_where_the_scores_are_too_much(has):
    config = make_config(data__batch_size=8, negatives__choose="hardest", negatives__num_sampled=4)
    config.negatives.queue = 100_000
    whole = memory.loss_bytes(make_plan(config, 1), 1, 8)
    has(whole - 1)
    assert "cpc_loss fits with block=256" in refusal(config, num_offsets=1)
    has(whole)
    check(config, num_offsets=1)


def test_rows_that_cannot_be_cut_are_scored_in_small_blocks(has, monkeypatch):
    """2^28 scores at a time, where the 1,024 anchors would have 6 GB of them."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    config = make_config(data__batch_size=8, loss__name="nce")
    config.negatives.queue = 500_000
    # Of each of the 8 windows alike, so not quite as many as there could be.
    scores = 12 * (2**28 // 501_024 // 8 * 8) * 501_024
    keys, queries = 501_024 * 512, 1024 * 512
    needed = scores + 4 * keys + 4 * (keys + 2 * queries)
    assert memory.loss_bytes(make_plan(config, 1), 1, 8) == pytest.approx(needed, rel=0.01)
    has(needed // 2)
    assert f"in blocks of {2**28 // 501_024} anchors" in refusal(config, num_offsets=1)


def test_what_needs_less_is_let_through(has):
    config = make_config(data__batch_size=128)
    needed = memory.loss_bytes(make_plan(config), 1, 128)
    has(needed - 1)
    refusal(config)
    assert memory.loss_bytes(make_plan(config), 8, 128) == needed / 8  # keys travel
    check(config, num_devices=8)
    config.model.dtype = "bfloat16"
    check(config)
    config.model.dtype, config.negatives.rule = "float32", "one_per_sequence"
    check(config)


def test_images_count_all_directions():
    config = image_fashion_mnist.get_config()
    config.model.directions = ("down", "left")
    geometry = image.geometry(config)
    batch = {"x": jax.ShapeDtypeStruct((2, 28, 28, 1), "uint8")}
    model = image.build_model(config)
    shapes = jax.eval_shape(lambda batch: prepare(config, batch, jax.random.key(0), False), batch)
    variables = jax.eval_shape(lambda batch: model.init(jax.random.key(0), batch), shapes)
    outputs, _ = jax.eval_shape(lambda v, x: model.apply(v, x, False), variables, shapes)
    assert sum(one.predictions.shape[-2] for one in outputs) == geometry.num_offsets
    side = geometry.num_latents**0.5
    assert outputs[0].z.shape == (2, side, side, geometry.width)


def test_memory_of_a_device(monkeypatch, tmp_path):
    def mesh_of(stats, count=1):
        device = types.SimpleNamespace(process_index=0, memory_stats=lambda: stats)
        return types.SimpleNamespace(devices=types.SimpleNamespace(flat=[device] * count))

    assert memory.device_bytes(mesh_of({"bytes_limit": 7})) == 7
    monkeypatch.setattr(memory, "LIMITS", ())
    machine = memory.device_bytes(mesh_of(None))
    assert memory.device_bytes(mesh_of({}, 8)) == machine // 8
    for text, expected in (("4096\n", 4096), ("max\n", machine)):
        (tmp_path / "memory.max").write_text(text)
        limits = (str(tmp_path / "none"), str(tmp_path / "memory.max"))
        monkeypatch.setattr(memory, "LIMITS", limits)
        assert memory.device_bytes(mesh_of(None)) == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, None),
        ({"data__batch_size": 16 * 10**4}, "a batch alone takes .*: lower data.batch_size"),
        ({"model__context_width": 2**15}, "weights alone takes .*: lower model.context_width"),
        ({"model__context_layers": 256, "model__context_width": 2048}, "weights alone takes"),
        ({"evaluate__num_windows": 10**6}, "an evaluation alone takes .* lower evaluate.num_win"),
    ],
)
def test_the_least_that_all_else_takes_is_counted(has, change, sentence):
    has(8 * 10**9)
    sizes = make_plan(make_config(**change), width=128), make_mesh(1), (20480,)
    if sentence is None:
        memory.check_sizes(*sizes)
        return
    with pytest.raises(UserError, match=sentence):
        memory.check_sizes(*sizes)


def test_series_that_do_not_fit_the_machine_are_not_made_up(monkeypatch):
    monkeypatch.setattr(memory, "host_bytes", lambda: 10**9)
    config = series_ar1.get_config()
    series.check(config)
    config.data.num_files = 10**7
    with pytest.raises(UserError, match=r"the data alone take .* GB: lower data\.num_files"):
        series.check(config)


def has_negatives(config, length):
    offsets = tuple(range(1, config.model.num_offsets + 1))
    geometry = Geometry(length, 8, (Branch("forward", offsets),))
    try:
        check_window(config, make_rule(config), geometry)
    except UserError:
        return False
    return True


def count_every_pair(config, length):
    """As they are defined: of all anchors of the first window, of all candidates."""
    if length < 2:
        return False
    rule, batch_size = make_rule(config), config.data.batch_size
    sequence, time = np.divmod(np.arange(batch_size * length), length)
    candidates = Position(sequence, time, np.zeros_like(time), np.zeros_like(time))
    for k in range(1, min(config.model.num_offsets, length - 1) + 1):
        first = np.arange(length - k)[:, None]
        if not np.any(rule(Position(0 * first, first, 0 * first, 0 * first), candidates, k)):
            return False
    return True


@pytest.mark.slow
def test_few_positions_tell_whether_there_are_negatives():
    rng, found = np.random.default_rng(0), []
    rules = ("batch", "excluding_sequence", "own_sequence", "same_group", "one_per_sequence")
    for _ in range(300):
        batch_size = int(rng.integers(1, 5))
        config = make_config(
            data__batch_size=batch_size,
            negatives__rule=str(rng.choice(rules)),
            negatives__window=int(rng.integers(0, 9)),
            negatives__shards=int(rng.choice([s for s in (1, 2, 3, 4) if batch_size % s == 0])),
            model__num_offsets=int(rng.integers(1, 9)),
        )
        length = int(rng.integers(1, 9))
        found.append(count_every_pair(config, length))
        assert has_negatives(config, length) == found[-1]
    assert 50 < sum(found) < 250


def test_whether_there_are_negatives_takes_no_memory():
    tracemalloc.start()
    assert has_negatives(make_config(data__batch_size=2**17), 10**6)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
