"""Audio branches: positions, padding, negatives and the loss of segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_voices_macpc, audio_voices_paper
from cpc import models
from cpc.losses import acpc_loss, cpc_loss
from cpc.negatives import outside_overlap
from cpc.types import Batch
from experiments.kinds.audio import model as audio
from experiments.training.objective import objective_loss, scored
from experiments.training.plan import make_rule
from experiments.training.records import strict_sums
from tests.plans import plan_of

BOTH = ("forward", "backward")


def small(card=audio_voices_paper, window=1600, **keys):
    config = card.get_config()
    config.model.width = config.model.context_width = 8
    config.data.window_samples, config.data.batch_size = window, 4
    config.model.update({"num_offsets": 2, **keys})
    return config


def batch_of(window, lengths=None, filling=0.0, samples=(0, 10**6, 2 * 10**6, 3 * 10**6)) -> Batch:
    """Return four windows of noise that rises and falls."""
    row, time = jnp.arange(4), np.arange(window)
    x = np.random.default_rng(0).normal(size=(4, window)).astype(np.float32)
    x *= 1 + np.sin(time / 700) * np.linspace(0.5, 0.9, 4)[:, None]
    batch = {"sequence": row, "speaker": row // 3, "sample": jnp.array(samples)}
    if lengths is not None:
        x = np.where(time < np.array(lengths)[:, None], x, filling)
        batch["num_samples"] = jnp.array(lengths)
    return batch | {"x": jnp.asarray(x)}


def test_branch_names_and_sizes():
    def names(**keys):
        return tuple(branch.name for branch in audio.geometry(small(**keys)).branches)

    assert names() == ("forward",)
    assert names(directions=BOTH) == BOTH
    assert names(modules=3) == ("module 3", "module 2", "module 1")
    assert names(modules=2, directions=BOTH) == tuple(
        f"module {number} {direction}" for number in (2, 1) for direction in BOTH
    )
    found = audio.geometry(small(modules=3, directions=BOTH))
    assert (found.num_latents, found.width, found.num_offsets) == (10, 8, 12)
    for keys, number in (({}, 3 + 2), ({"segment_offsets": 0, "num_offsets": 1}, 1 + 1)):
        found = audio.geometry(levels_config(**keys))
        assert (found.num_latents, found.width, found.num_offsets) == (60, 8, number)


@pytest.mark.parametrize("lengths", [None, [1600, 1200, 700, 1]])
@pytest.mark.parametrize("keys", [{"modules": 6}, {"directions": BOTH, "modules": 2}])
def test_overlapping_samples_are_not_negatives_in_any_branch(keys, lengths):
    overlapping = (160_000, 160_800, 320_000, 480_000)  # the first two
    config, batch = small(**keys), batch_of(1600, lengths, samples=overlapping)
    model = audio.build_model(config)  # outputs are zeros: nothing compiles
    variables = jax.eval_shape(model.init, jax.random.key(0), batch)
    shapes = jax.eval_shape(lambda v: model.apply(v, batch, True, None)[0], variables)
    outputs, module = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes), model.module
    directions = audio.split_branches(module, outputs, batch)
    rule = outside_overlap(audio.geometry(config).apart)
    apart = jax.jit(lambda flat: rule(jax.tree.map(lambda p: p[:, None], flat), flat, 1))
    for (number, direction), one in zip(module.branches, directions, strict=True):
        (outputs, where, mask), encoder = one, module.encoder
        length = outputs.z.shape[1]
        assert length == 10
        if number <= len(module.cuts):
            encoder = encoder.upto(module.cuts[number - 1], {})[0]
        stride, real = encoder.stride, np.full(4, length)
        if lengths is not None:
            real = np.minimum(encoder.num_existing(np.array(lengths)), length)
        assert (mask is None) == (lengths is None)
        # The first sample of each latent, by hand.
        time = np.tile(np.arange(length), (4, 1))
        place = time if direction == "forward" else real[:, None] - 1 - time
        begin = np.asarray(batch["sample"])[:, None] + stride * place
        if mask is not None:
            np.testing.assert_array_equal(mask, time < real[:, None])
        flat = jax.tree.map(lambda p: jnp.broadcast_to(p, (4, 10)).ravel(), where)
        found = np.asarray(apart(flat)).reshape(4, length, 4, length)
        for one in range(2):  # the overlapping windows
            other = 1 - one
            first = int(batch["sample"][one])
            lag = begin[other] - first
            if direction == "backward":
                lag = first + stride * (real[one] - 1) - begin[other]
            shared = (lag > -stride) & (lag < stride * length)
            here = slice(0, real[one]), slice(0, real[other])
            wanted = np.broadcast_to(~shared, (length, length))
            np.testing.assert_array_equal(found[one, :, other][here], wanted[here])
        assert found[:2, :, 2:].all()


SAMPLES = 9600  # 60 frames
SEGMENT_LENGTHS = (SAMPLES, 7000, SAMPLES, 5000)


def levels_config(align_to=6, **keys):
    config = small(audio_voices_macpc, SAMPLES, **{"num_offsets": 3, **keys})
    config.loss.align_to, config.negatives.shards = align_to, 1
    return config


@pytest.fixture(scope="module")
def levels_of():
    """Return a function from a batch to its branches, compiled once per kind of batch."""
    model = audio.build_model(levels_config())
    variables = jax.jit(model.init)(jax.random.key(0), batch_of(SAMPLES))

    @jax.jit
    def levels(batch):
        return audio.split_branches(model.module, model.apply(variables, batch, False)[0], batch)

    return levels


@pytest.mark.parametrize("lengths", [None, SEGMENT_LENGTHS])
def test_segments_are_not_negatives_of_overlapping_windows(levels_of, lengths):
    """Window 1 begins 20 frames after window 0 of the same recording."""
    batch = batch_of(SAMPLES, lengths, samples=(0, 3200, 10**6, 2 * 10**6))
    frames, segments = levels_of(batch)
    begins = np.asarray(models.boundaries(frames.outputs.z, 0.05, frames.mask))
    shape = segments.mask.shape
    place = jax.tree.map(lambda p: jnp.broadcast_to(p, shape).ravel(), segments.positions)
    anchors = jax.tree.map(lambda p: p[:, None], place)
    rule, num = outside_overlap(plan_of(levels_config()).geometry.apart), shape[1]
    allowed = np.asarray(rule(anchors, place, 1)).reshape(4, num, 4, num)
    num_excluded = 0
    for one, other, lag in ((0, 1, 20), (1, 0, -20)):
        real = 60 if frames.mask is None else int(frames.mask[other].sum())
        parts = np.split(np.arange(real), np.flatnonzero(begins[other, :real]))
        assert int(segments.mask[other].sum()) == len(parts)
        for m, part in enumerate(parts):
            heard = set(part + lag) & set(range(60))
            assert (allowed[one, :, other, m] == (not heard)).all(), (one, m)
            num_excluded += bool(heard)
    assert 0 < num_excluded < len(parts) + int(segments.mask[1].sum())
    np.testing.assert_array_equal(allowed[0, :, 0], ~np.eye(num, k=1, dtype=bool))
    assert allowed[:2, :, 2:][:, :, :, 0].all()


@pytest.mark.parametrize(("align_to", "lengths"), [(0, None), (6, SEGMENT_LENGTHS)])
def test_loss_sums_frames_and_segments(levels_of, align_to, lengths):
    config = levels_config(align_to)
    plan, levels = plan_of(config), levels_of(batch_of(SAMPLES, lengths))
    offsets = tuple(branch.offsets for branch in plan.geometry.branches)
    assert offsets == (((2, 4, 6), (2, 4)) if align_to else ((1, 2, 3), (1, 2)))

    @jax.jit
    def found(levels):
        total, sums, _, metrics = objective_loss(plan, {}, {}, levels, jax.random.key(0), False)
        strict = sums if align_to else strict_sums(plan, {}, {}, [levels])[0]
        return total, sums, metrics, strict

    @jax.jit
    def wanted(levels):
        losses, frames = [], []
        rule = make_rule(config) & outside_overlap(plan.geometry.apart)
        for own, (outputs, positions, mask) in zip(offsets, levels, strict=True):
            shared = {"temperature": 0.05, "where": mask}
            given = scored(plan, outputs), positions, rule
            if align_to:
                loss, _, each = acpc_loss(*given, num_frames=own[-1], **shared)
                frames.extend(each)
            else:
                loss, _ = cpc_loss(*given, **shared)
            losses.append(loss)
        return sum(losses), frames

    (total, sums, metrics, strict), (loss, frames) = found(levels), wanted(levels)
    np.testing.assert_allclose(total, loss, rtol=1e-5)
    if align_to:
        np.testing.assert_allclose(metrics["frames_per_prediction"], frames, rtol=1e-5)
    real = [np.full(4, 60) if e is None else np.asarray(e).sum(1) for *_, e in levels]
    assert (real[1] > 5).all()
    ahead = [(number, own[-1] if align_to else k) for number, own in
             zip(real, offsets, strict=True) for k in own]  # fmt: skip
    anchors = [np.maximum(number - k, 0).sum() for number, k in ahead]
    np.testing.assert_array_equal(sums.anchors, anchors)
    assert strict.loss.shape == (5,)
    assert (np.asarray(strict.anchors) > 0).all()
    if lengths is not None:
        noisy, *_ = found(levels_of(batch_of(SAMPLES, lengths, filling=50.0)))
        np.testing.assert_allclose(noisy, total, rtol=1e-6)
