"""The benchmark: operation counts, ratios to torch and the written report."""

import json
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import models
from cpc.train import make_mesh, put_batch
from cpc.types import UserError
from experiments.bench import step as bench_step
from experiments.bench import timing, versus
from experiments.bench.step import count_compilations, count_flop, make_step
from tests import commands
from tests.plans import problem_of

ROOT = pathlib.Path(__file__).parents[2]


def shapes(encoder, context, num_offsets, batch, samples):
    module = models.CPC(encoder, context, models.LinearPredictor(num_offsets, encoder.width))
    x = jnp.zeros((batch, samples))
    return jax.eval_shape(module.init, jax.random.key(0), x)["params"]


def test_flop_equals_counting_by_hand():
    """2 windows of 40 samples; layers of 20 and 10 frames; width 3, GRU 5, offsets 1 and 2."""
    encoder = models.ConvEncoder(3, kernels=(4, 4), strides=(2, 2))
    flop = count_flop(shapes(encoder, models.GRU(5), 2, 2, 40), encoder, 2, 40, (1, 2))
    first, second = 2 * 2 * 20 * (4 * 1 * 3), 2 * 2 * 10 * (4 * 3 * 3)
    assert flop["encoder"] == 2 * first + 3 * second
    assert flop["context"] == 3 * 2 * (2 * 10) * (3 * 15 + 5 * 15)
    pairs = 2 * (9 + 8)
    assert flop["predictor"] == 3 * 2 * pairs * 5 * 3
    assert flop["criterion"] == 3 * 2 * pairs * 20 * 3
    # Only the convolutions after the mel energies count.
    mel = models.LogMelEncoder(3, kernels=(3, 1), num_mels=5)
    first, second = 2 * 2 * 10 * (3 * 5 * 3), 2 * 2 * 10 * (3 * 3)
    found = count_flop(shapes(mel, models.GRU(5), 1, 2, 1600), mel, 2, 1600, (1,))
    assert found["encoder"] == 2 * first + 3 * second
    further = count_flop(
        shapes(encoder, models.GRU(5), 2, 2, 40), encoder, 2, 40, (1, 5), num_shards=2
    )
    assert further["criterion"] == 3 * 2 * (2 * (9 + 5)) * 10 * 3


@pytest.mark.parametrize(("context", "matrices"), [
    (models.LSTM(8), 4 * 4 + 4 * 8), (models.GRU(8, 2), 3 * 4 + 3 * 8 + 3 * 8 + 3 * 8),
    (models.CausalConv(8, 2), 4 + 2 * 3 * 8),
    (models.CausalTransformer(8, 2, num_heads=2), 4 + 2 * 12 * 8 + 2 * 2 * 10),
])  # fmt: skip
def test_flop_of_contexts(context, matrices):
    """Columns of all matrices by width 8; attention costs 2 t h per product."""
    encoder = models.ConvEncoder(4, kernels=(4, 4), strides=(2, 2))
    flop = count_flop(shapes(encoder, context, 1, 2, 40), encoder, 2, 40, (1,))
    assert flop["context"] == 3 * 2 * 20 * 8 * matrices


def test_compilations_are_counted():
    double = jax.jit(lambda x: 2 * x)
    three, four = jnp.zeros(3), jnp.zeros(4)
    double(three)
    with count_compilations() as compilations:
        double(three)
        assert compilations() == 0
        double(four)
        assert compilations() == 1
    double(jnp.zeros(5))
    assert compilations() == 1


def test_verdict_needs_a_target():
    slow = timing.Row("start", {"seconds": 5.1}, "5.1 s", "seconds <= 5")
    fast = timing.Row("input", {"times": 10.0}, "10 times", "times >= 10")
    plain = timing.Row("memory", {"megabytes": 3.0}, "3 MB")
    said = [line.split()[-1] for line in timing.format_table([slow, fast, plain]).splitlines()]
    assert said == ["MISSED", "met", "MB"]
    assert [timing.describe(row).get("met") for row in (slow, fast, plain)] == [False, True, None]


def test_ratios_are_computed_per_round():
    """Rounds of 2 s and 4 s against 4 s and 5 s have ratios 0.5 and 0.8."""
    flop = {"step": 8, "product": 4}
    rounds = [
        {
            "ours": {"seconds": {"step": a, "product": 0.5}, "flop": flop, "peak_bytes": 10**9},
            "torch": {"seconds": {"step": b}, "peak_bytes": 3 * 10**9, "version": "2"},
        }
        for a, b in ((2.0, 4.0), (4.0, 5.0))
    ]
    ratio = versus.ratio_row("step to torch's", "step", rounds, 0.6)
    assert ratio.figures["ratio_to_torch"] == pytest.approx(0.65)
    assert (ratio.figures["ratio_to_torch_min"], ratio.figures["ratio_to_torch_max"]) == (0.5, 0.8)
    assert ratio.figures["torch_peak_megabytes"] == 3000
    assert ratio.is_met() is False
    own = versus.own_row("step", "step", rounds, "fraction_of_peak >= 0.3")
    # 8 operations in 2 s and 4 s, where the product does 8 a second.
    assert own.figures["fraction_of_peak"] == pytest.approx((0.5 + 0.25) / 2)
    assert (own.figures["milliseconds"], own.figures["peak_megabytes"]) == (3000, 1000)
    assert own.is_met() is True


@pytest.mark.parametrize("python", [None, "torch"])
def test_sizes_depend_on_the_device(monkeypatch, python):
    asked = []

    def run_side(python, side, sizes):
        asked.append((side, json.loads(sizes)))
        seconds = dict.fromkeys((*versus.CASES, "product"), 1.0)
        flop = dict.fromkeys(seconds, 1)
        return {"seconds": seconds, "flop": flop, "peak_bytes": 1, "version": "2"}

    monkeypatch.setattr(versus, "run_side", run_side)
    monkeypatch.setattr(versus, "find_torch", lambda device: python)
    for device, batch_size, num_shards in (("cpu", 8, 1), ("gpu", 64, 8)):
        rows = versus.torch_rows(device, 1, 1, alone=True)
        if not python:
            first = rows.pop(0)
            assert (first.figures, len(rows)) == ({"measured": False}, 2 * len(versus.CASES))
            assert versus.torch_rows(device, 1, 1, alone=False) == [first]
        given = {"device": device, "batch_size": batch_size, "num_shards": num_shards}
        sides = {"versus", "by_torch"} if python else {"versus"}
        assert {side for side, sizes in asked if {**sizes, **given} == sizes} == sides
        asked.clear()
        half = len(rows) // 2
        judged = [any(row.target for row in some) for some in (rows[:half], rows[half:])]
        assert judged == [True, False]


def test_info_nce_is_measured_on_the_named_device():
    measured = versus.measure_info_nce({"n": 32, "d": 8, "device": "cpu", "num_calls": 1})
    assert set(measured["seconds"]) == {"info_nce", "products"}
    assert measured["bytes"] >= 4 * (2 * 32 * 8)  # two gradients
    gpu = types.SimpleNamespace(memory_stats=lambda: {"peak_bytes_in_use": 7})
    assert timing.peak_bytes(gpu) == 7
    with pytest.raises(UserError, match="No tpu device"):
        versus.measure_info_nce({"n": 32, "d": 8, "device": "tpu", "num_calls": 1})
    with pytest.raises(UserError, match="by_torch: ModuleNotFoundError"):
        versus.run_side(sys.executable, "by_torch", "{}")


SIZES = {
    "width": 8, "context_width": 4, "num_offsets": 3, "batch_size": 4, "window_samples": 1600,
    "num_shards": 2, "device": "cpu", "num_calls": 1,
}  # fmt: skip


@pytest.fixture
def small_product(monkeypatch):
    for module in (bench_step, versus):
        monkeypatch.setattr(module, "PRODUCT_FLOP", 2 * 64**3)
    monkeypatch.setattr(bench_step, "PRODUCT_SIZE", 64)


def test_versus_times_every_part(small_product):
    measured = versus.measure_step(SIZES)
    assert set(measured["seconds"]) == set(measured["flop"]) == {*versus.CASES, "product"}
    assert measured["peak_bytes"] > 10**8


def test_step_rows_include_all_parts(small_product):
    config = versus.make_config(SIZES)
    made = bench_step.step_rows(config, versus.make_sound(config), make_mesh(1), 2)
    rows = {row.name: timing.describe(row) for row in made}
    assert rows["compilations after the first step"]["compilations"] == 0
    step = rows["whole training step"]
    parts = [rows[f"{name}, value and gradient"] for name in ("encoder", "criterion")]
    assert step["target"] == "fraction_of_peak >= 0.5"
    assert step["gflop"] > sum(part["gflop"] for part in parts)
    for row in (step, *parts):
        least, middle, most = (row[f"fraction_of_peak{end}"] for end in ("_min", "", "_max"))
        assert 0 < least <= middle <= most


def test_criterion_equals_the_torch_criterion():
    """Cross-entropy of dot products within a shard, without temperature."""
    config, mesh = versus.make_config(SIZES), make_mesh(1)
    problem = problem_of(config, versus.make_sound(config))
    batch = put_batch(problem.draw(0), mesh)
    step = make_step(problem, mesh, batch)
    (loss, _), gradients = step.parts["criterion"]()
    variables = {"params": step.params["model"]}
    x = problem.preprocess(batch, jax.random.key(0), True)
    rng = jax.random.key(0)
    z, c, predictions = jax.jit(lambda: problem.model.apply(variables, x, True, rng)[0])()
    z, predictions, expected = np.asarray(z), np.asarray(predictions), 0.0
    for k in range(1, 4):
        losses = []
        for rows in np.split(np.arange(4), 2):
            scores = np.einsum("btd,csd->btcs", predictions[rows, :-k, k - 1], z[rows])
            own = np.einsum("btd,btd->bt", predictions[rows, :-k, k - 1], z[rows, k:])
            losses.append(np.log(np.exp(scores).sum((2, 3))) - own)
        expected += np.mean(losses)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    shapes = [z.shape, c.shape, (3, 4, 8)]  # inputs that torch differentiates by
    assert [gradient.shape for gradient in gradients] == shapes


def test_rounds_alternate_cases_and_take_medians(monkeypatch):
    calls, clock = [], iter(range(0, 1000, 7))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) ** 2)
    cases = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = timing.time_rounds(cases, 2, num_calls=3)
    assert "".join(calls) == "aabb" + 2 * "aaabbb"
    # Call i takes 49 (4 i + 1) seconds.
    assert seconds == {"a": [49 * 5, 49 * 29], "b": [49 * 17, 49 * 41]}
    assert timing.median_times(seconds) == {"a": 49 * 17, "b": 49 * 29}


def bench(path, part, status=0):
    config = "--config=configs/audio_synthetic.py", "--config.data.window_samples=2560"
    flags = (*config, "--config.model.num_offsets=4", "--quick", f"--part={part}", "--json", path)
    return commands.run("experiments.bench", *flags, status=status)


def test_command_measures_one_part(tmp_path):
    path = tmp_path / "out.json"
    bench(path, "input")
    written = json.loads(path.read_text())
    assert (written["quick"], written["config"]["data"]["source"]) == (True, "synthetic")
    assert isinstance(written["allocator"]["freed_memory_kept"], bool)
    names = [f"input pipeline, batches of {number}" for number in (8, 64)]
    assert [row["name"] for row in written["rows"]] == names
    assert written["rows"][1]["source"] == "synthetic"
    assert "--json" in bench(tmp_path / "absent" / "out.json", "input", status=2).stderr


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["step", "criterion"])
def test_command_measures_every_part(tmp_path, part):
    assert "figures" in bench(tmp_path / "out.json", part).stdout
