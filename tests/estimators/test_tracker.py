"""The tracker: intervals, states, warnings and the strict bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from cpc import negatives
from cpc.data import phone_chain, synthetic_information
from cpc.data.sources.synthetic import stationary
from cpc.estimators import Tracker, bound_over_sequences, split_by_group
from cpc.estimators.tracker import is_new
from cpc.losses import OffsetSums
from cpc.types import Position, UserError
from tests.estimators.coverage import SETTINGS, coverage, draw_sums
from tests.losses.any_rule import contrasts


def sums_of(values, anchors, log_n):
    values, anchors = np.asarray(values, float), np.asarray(anchors, float)
    n = np.exp(log_n)
    return OffsetSums(
        *(np.array([x]) for x in (
            anchors.sum(), (anchors * log_n - values).sum(), anchors.sum() * n,
            anchors.sum() * log_n, anchors.sum() / n, anchors.sum() / 4, anchors.sum() / 2,
            float(len(values)), values.sum(),
            (values**2).sum(), (values * anchors).sum(), (anchors**2).sum(),
        ))
    )  # fmt: skip


def test_interval_equals_standard_error_of_block_means():
    """Blocks weigh as much as they have anchors."""
    rng = np.random.default_rng(0)
    for anchors in (np.full(40, 10), rng.integers(5, 30, 40)):
        means = rng.normal(1.5, 0.3, 40)
        track = Tracker(True)(sums_of(means * anchors, anchors, np.log(64)))
        mean = np.average(means, weights=anchors)
        own = anchors / anchors.mean() * (means - mean)
        half = scipy.stats.t.ppf(0.975, 39) * np.sqrt(np.square(own).sum() / 39 / 40)
        found = track.low[0], track.value[0], track.high[0]
        assert found == pytest.approx((mean - half, mean, mean + half))


def test_interval_covers_the_mean_with_shared_negatives():
    """Counting only own anchors would cover 0.84 to 0.90; the standard error of 500 draws is 0.01.

    `coverage` tests other settings at night; `test_influence` tests the moments of every rule.
    """
    sums = draw_sums(SETTINGS["strict, near the ceiling"], 500)
    assert 0.92 <= coverage(sums) <= 0.985


LOG_N = np.log(64)


def join(*values, log_n=LOG_N):
    """Return one offset per value, shared by two sequences of 8 anchors."""
    each = (sums_of([value] * 2, [8, 8], log_n) for value in values)
    return jax.tree.map(lambda *ends: np.concatenate(ends), *each)


def test_states_by_share_of_log_n():
    shares = -2.0, -0.9, 0.0, 0.005, 0.3, 0.59, 0.61, 0.89, 0.91, 1.0
    track = Tracker(True)(join(*(8 * LOG_N * share for share in shares)))
    assert track.state == (
        "diverged", *["chance"] * 3, "fine", "fine", "warn", "warn", "saturated", "saturated"
    )  # fmt: skip
    np.testing.assert_allclose(track.log_n, LOG_N)
    np.testing.assert_allclose(track.chance, 1 / 64)
    assert set(track.acc_top1) == {0.25}
    assert set(track.acc_pairwise) == {0.5}


def warn(is_bound, sums, names=("1",)):
    tracker = Tracker(is_bound)
    return tracker.warning(tracker(sums), list(names))


def test_warnings_name_offsets_and_directions():
    assert "at chance" in warn(False, join(0.0))
    assert "the estimate is at its ceiling log N at offset 1" in warn(False, join(8 * LOG_N))
    assert "the bound is at its ceiling" in warn(True, join(8 * LOG_N))
    assert warn(False, join(16.0)) is None
    said = warn(True, join(16.0, 8 * LOG_N, 16.0, 8 * LOG_N), ("2 down", "3 down", "2 up", "3 up"))
    assert "at offset 3 down, 3 up:" in said
    diverged = warn(True, join(16.0, -1e3, 16.0), "123")
    assert "at offset 2 the loss" in diverged
    assert "learning_rate" in diverged
    assert "NaN" in warn(True, join(np.nan))


def test_losses_without_log_n_have_no_value_or_warning():
    tracker = Tracker(False, "batch", has_log_n=False)
    track = tracker(join(-100.0, 0.0, 8 * LOG_N))
    assert np.isnan([track.value, track.low, track.high]).all()
    assert track.state == ("",) * 3
    assert tracker.warning(track, "123") is None
    assert track.acc_top1[0] == 0.25


def test_offset_without_anchors_is_nan():
    track = Tracker(True)(OffsetSums(*(np.zeros(2) for _ in OffsetSums._fields)))
    assert np.isnan(track.value).all()
    assert track.state == ("chance", "chance")
    assert "has no anchor" in Tracker(True).warning(track, ["1", "2"])


def test_tracker_rejects_other_types(unchecked):
    for value in ("yes", negatives.batch, 1):
        with pytest.raises(UserError, match="is_bound"):
            Tracker(value)


#: (utterance, first sample, latents) of windows of up to 3 latents with 10 samples each.
WINDOWS = (
    (0, 0, 0), (0, 0, 3), (0, 0, 3), (0, 29, 1), (0, 30, 1), (0, 45, 3), (0, 70, 2), (0, 75, 3),
    (1, 0, 3), (1, 30, 3), (1, 12, 1), (1, 85, 3), (1, 60, 0), (1, 55, 3),
)  # fmt: skip


@pytest.mark.parametrize("wraps", [0, 2**31 - 120, 2**32 - 120], ids=["", "2^31", "2^32"])
def test_is_new_equals_sets_of_samples(wraps):
    utterance, start, number = np.array(WINDOWS).T
    window = (np.array([100, 300])[utterance] + start + wraps)[:, None]
    end = window + 10 * np.arange(1, 4)
    window, end = (x.astype(np.int64).astype(np.int32) for x in (window, end))
    heard = [{(u, first + s) for s in range(10 * count)} for u, first, count in WINDOWS]
    expected = [all(own.isdisjoint(one) for one in heard[:i]) for i, own in enumerate(heard)]
    found = jax.jit(is_new)(window, end, np.arange(3) < number[:, None])
    assert found.tolist() == expected
    assert 5 < sum(expected) < len(WINDOWS) - 3


def naive_split(z, predictions, group, mask):
    """Return anchors, sums of log N - L and of u_b^2 (within, between), and left-out anchors."""
    (b, t, _), rule = z.shape, negatives.one_per_sequence
    found, own = np.zeros((6, 2)), np.zeros((2, 2, b))  # values minus received weights
    grid = Position.grid(b, t)
    for row, i, target, others, scores in contrasts(z, predictions, grid, rule, (1, 2), mask):
        alike = [j for j in others if group[j // t] == group[i // t] >= 0]
        found[0 if alike else 5, row] += 1
        values = []
        for candidates, signs in ((alike, (1, -1)), (others, (0, 1))) if alike else ():
            weights = np.exp(scores[[target, *candidates], row])
            weights = weights / weights.sum()
            values.append(np.log(len(weights)) + np.log(weights[0]))
            own[row][:, np.array(candidates) // t] -= np.outer(signs, weights[1:])
        if alike:
            parts = values[0], values[1] - values[0]
            own[row, :, i // t] += parts
            found[1:3, row] += parts
    found[3:5] = np.square(own).sum(-1).T
    return found


def test_split_by_group_equals_the_naive_twin():
    """Groups of 3, 2 and 1 sequences and an unknown one; padding is NaN."""
    rng = np.random.default_rng(0)
    z, predictions = rng.normal(size=(8, 4, 5)), rng.normal(size=(8, 4, 2, 5))
    group = np.array([0, 1, 0, 2, 1, 0, -1, -1])
    mask = np.arange(4) < np.array([4, 4, 3, 4, 2, 4, 4, 4])[:, None]
    expected = naive_split(z, predictions, group, mask)
    z[~mask], predictions[~mask] = np.nan, np.nan
    given, where = (jnp.float32(z), jnp.float32(predictions)), jnp.asarray(mask)
    whole, within, between = jax.jit(split_by_group)(*given, jnp.asarray(group), where=where)
    strict = jax.jit(bound_over_sequences)(*given, where=where)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), whole, strict)
    for part, value, square in ((within, *expected[[1, 3]]), (between, *expected[[2, 4]])):
        np.testing.assert_array_equal(part.anchors, expected[0])
        np.testing.assert_allclose(part.log_n - part.loss, value, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(part.value_squared, square, rtol=1e-4)
    np.testing.assert_array_equal(whole.anchors - within.anchors, expected[5])
    assert (expected[[0, 5]] > 0).all()


def test_split_by_group_is_the_chain_rule():
    """I(x; y) = I(speaker; y) + I(x; y | speaker) with the exact critic and 1,000 sequences."""
    chain, speakers, k, b = phone_chain(8), 4, 3, 1000
    rng = np.random.default_rng(0)
    later = np.linalg.matrix_power(chain, k)
    first = rng.integers(8, size=b)
    second = np.array([rng.choice(8, p=later[one]) for one in first])
    group = np.arange(b) % speakers
    # A speaker is one more block of columns: log S if it is the same, and impossible otherwise.
    log_ratio = np.log(later / stationary(chain))
    same = np.where(np.eye(speakers, dtype=bool), np.log(speakers), -40.0)
    z = np.stack([np.zeros((b, 12)), np.c_[np.eye(8)[second], np.eye(4)[group]]], 1)
    predictions = np.stack([np.c_[log_ratio[first], same[group]], np.zeros((b, 12))], 1)[:, :, None]
    given = jnp.float32(z), jnp.float32(predictions), jnp.asarray(group)
    whole, *parts = [Tracker(True)(one) for one in jax.jit(split_by_group)(*given)]
    truth = synthetic_information(k, chain), np.log(speakers)
    assert sum(truth) == pytest.approx(synthetic_information(k, chain, speakers))
    assert sum(one.value[0] for one in parts) == pytest.approx(whole.value[0], abs=1e-4)
    for track, nats in zip(parts, truth, strict=True):
        assert track.low[0] - 0.01 <= nats <= track.high[0] + 0.01  # 0.01: N is finite
        assert track.high[0] - track.low[0] < 0.2
    np.testing.assert_allclose(parts[0].n, b / speakers)
    np.testing.assert_allclose(parts[0].log_n, np.log(b / speakers), rtol=1e-5)


def test_split_sums_to_the_strict_bound():
    rng = np.random.default_rng(0)
    z = jnp.float32(rng.normal(size=(6, 3, 2, 5)))
    predictions = jnp.float32(rng.normal(size=(6, 3, 2, 1, 5)))
    window = jnp.array([0, 100, 5, 200, 300, 105])[:, None, None]
    sound = [
        jnp.broadcast_to(x, (6, 3, 2)) for x in (window, window + 10 * jnp.arange(1, 4)[:, None])
    ]
    group, options = jnp.array([0, 0, 1, 1, 0, 1]), {"offsets": (2,), "sound": tuple(sound)}
    split = jax.jit(lambda *given: split_by_group(*given, group, **options))(z, predictions)
    strict = jax.jit(lambda *given: bound_over_sequences(*given, **options))(z, predictions)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), split.whole, strict)
    assert (split.whole.n == 4 * split.whole.anchors).all()
    assert (split.whole.anchors, split.within.anchors) == (8, 6)  # sequence 3 is alone in its group
