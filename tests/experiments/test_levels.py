"""Frames and segments that both predict: each level's loss is what it would be alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_voices_macpc
from cpc.losses import acpc_loss, cpc_loss
from cpc.negatives import outside_overlap
from cpc.types import UserError
from experiments.kinds.audio import model as audio
from experiments.training.objective import objective_loss, scored
from experiments.training.plan import make_rule
from experiments.training.records import strict_sums
from tests.plans import plan_of

SAMPLES = 9600  # 60 frames


def small(align_to=6, **keys):
    config = audio_voices_macpc.get_config()
    config.model.width = config.model.context_width = 8
    config.model.num_offsets, config.loss.align_to = 3, align_to
    config.data.window_samples, config.data.batch_size, config.negatives.shards = SAMPLES, 4, 1
    config.model.update(keys)
    return config


def batch_of(lengths=None, filling=0.0):
    x = np.random.default_rng(0).normal(size=(4, SAMPLES)).astype(np.float32)
    x *= 1 + np.sin(np.arange(SAMPLES) / 700) * np.linspace(0.5, 0.9, 4)[:, None]
    batch = {
        "sequence": jnp.arange(4),
        "speaker": jnp.zeros(4, int),
        "sample": 10**6 * jnp.arange(4),
    }
    if lengths is not None:
        x = np.where(np.arange(SAMPLES) < np.array(lengths)[:, None], x, filling)
        batch["num_samples"] = jnp.array(lengths)
    return batch | {"x": jnp.asarray(x)}


def made(config, batch):
    """The plan, and the levels of a batch."""
    model = audio.build_model(config)
    variables = model.init(jax.random.key(0), batch_of())
    outputs, _ = model.apply(variables, batch, False)
    levels = audio.split_branches(model.module, outputs, batch)
    return plan_of(config), levels


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, (SAMPLES, 7000, SAMPLES, 5000)])
def test_segments_are_no_negatives_of_windows_that_hold_their_sound(lengths):
    """Window 1 begins 20 frames after window 0, in whose frames 20 to 59 it is heard."""
    config = small()
    batch = batch_of(lengths) | {"sample": jnp.array([0, 3200, 10**6, 2 * 10**6])}
    plan, levels = made(config, batch)
    frames, segments = levels
    begins = np.asarray(audio.models.boundaries(frames.outputs.z, 0.05, frames.exists))
    place = jax.tree.map(
        lambda p: jnp.broadcast_to(p, segments.exists.shape).ravel(), segments.positions
    )
    anchors = jax.tree.map(lambda p: p[:, None], place)
    allowed = np.asarray(outside_overlap(plan.geometry.apart)(anchors, place, 1))
    num = segments.exists.shape[1]
    allowed = allowed.reshape(4, num, 4, num)
    some = 0
    for one, other, lag in ((0, 1, 20), (1, 0, -20)):
        real = 60 if frames.exists is None else int(frames.exists[other].sum())
        parts = np.split(np.arange(real), np.flatnonzero(begins[other, :real]))
        assert int(segments.exists[other].sum()) == len(parts)
        for m, part in enumerate(parts):
            heard = set(part + lag) & set(range(60))
            assert (allowed[one, :, other, m] == (not heard)).all(), (one, m)
            some += bool(heard)
    assert 0 < some < len(parts) + int(segments.exists[1].sum())
    np.testing.assert_array_equal(allowed[0, :, 0], ~np.eye(num, k=1, dtype=bool))  # its positive
    assert allowed[:2, :, 2:][:, :, :, 0].all()


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, (SAMPLES, 7000, SAMPLES, 5000)])
@pytest.mark.parametrize("align_to", [0, 6])
def test_the_loss_is_the_sum_of_both_levels(align_to, lengths):
    config = small(align_to)
    plan, levels = made(config, batch_of(lengths))
    total, sums, _, metrics = objective_loss(plan, {}, {}, levels, jax.random.key(0), False)
    offsets = tuple(branch.offsets for branch in plan.geometry.branches)
    assert offsets == (((2, 4, 6), (2, 4)) if align_to else ((1, 2, 3), (1, 2)))
    losses, counts, frames = [], [], []
    for own, (outputs, positions, exists) in zip(offsets, levels, strict=True):
        shared = {"temperature": 0.05, "where": exists}
        outputs, rule = (
            scored(plan, outputs),
            make_rule(config) & outside_overlap(plan.geometry.apart),
        )
        if align_to:
            loss, one, each = acpc_loss(outputs, positions, rule, num_frames=own[-1], **shared)
            frames.extend(each)
        else:
            loss, one = cpc_loss(outputs, positions, rule, **shared)
        losses.append(loss)
        counts.extend(one.anchors)
    np.testing.assert_allclose(total, sum(losses), rtol=1e-5)
    np.testing.assert_array_equal(sums.anchors, counts)
    if align_to:
        np.testing.assert_allclose(metrics["frames_per_prediction"], frames, rtol=1e-5)
    strict, _ = strict_sums(plan, {}, {}, [levels])
    assert strict.loss.shape == (5,)
    assert (np.asarray(strict.anchors) > 0).all()


@pytest.mark.slow
def test_anchors_of_segments_have_all_the_segments_that_they_are_aligned_to():
    plan, levels = made(small(), batch_of())
    _, sums, _, _ = objective_loss(plan, {}, {}, levels, jax.random.key(0), False)
    segments = np.asarray(levels[1].exists).sum(1)
    assert (segments > 5).all()
    wanted = [4 * (60 - 6)] * 3 + [np.maximum(segments - 4, 0).sum()] * 2
    np.testing.assert_array_equal(sums.anchors, wanted)


@pytest.mark.slow
def test_what_padding_holds_changes_neither_level():
    config, lengths = small(padding="causal"), (SAMPLES, 7000, SAMPLES, 5000)
    found = []
    for filling in (0.0, 50.0):
        plan, levels = made(config, batch_of(lengths, filling))
        total, sums, *_ = objective_loss(plan, {}, {}, levels, jax.random.key(0), False)
        found.append((total, sums.anchors))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    np.testing.assert_array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"segment_threshold": 0.0}, "set model.segment_threshold above 0"),
        ({"segment_offsets": 4}, "model.segment_offsets is 4 and model.num_offsets is 3"),
        ({"segment_offsets": 0}, "set model.num_offsets to 1, or give frames contexts"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys, said):
    with pytest.raises(UserError, match=said):
        audio.check_model(small(**keys))


def test_a_slow_encoder_has_no_segments_of_its_own():
    config = small()
    config.negatives.momentum = 0.9
    with pytest.raises(UserError, match=r"set negatives\.momentum to 0"):
        audio.check_model(config)


def test_the_memory_of_the_loss_counts_the_predictions_of_both_levels():
    for keys, number in (({}, 3 + 2), ({"segment_offsets": 0, "num_offsets": 1}, 2)):
        found = audio.geometry(small(**keys))
        assert (found.num_latents, found.width, found.num_offsets) == (60, 8, number)
