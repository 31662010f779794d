"""Accidental hits: against other implementations' masks, and predicted against observed."""

import jax.numpy as jnp
import numpy as np
import pytest

from cpc.negatives import accidental_hits, hit_rate, is_positive
from cpc.types import Position, UserError
from tests.goldens.goldens import load_golden

MASKS = {n: c for n, c in load_golden("tf_samplers.json")[1].items() if n.startswith("accidental")}


@pytest.mark.parametrize("name", ["accidental_no_hit", "accidental_hits", "accidental_duplicates"])
def test_equals_golden(name):
    _, inputs, expected = MASKS[name]
    hits = accidental_hits(jnp.array(inputs["true_classes"]), np.array(inputs["sampled"]))
    want = expected.get("hit_mask_all", expected["hit_mask"])  # every copy, where they differ
    np.testing.assert_array_equal(hits, np.array(want, bool))


@pytest.mark.parametrize(("several", "own"), [(False, False), (True, True)])
def test_equals_naive_twin(several, own):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 5, (4, 2) if several else 4)
    candidates = rng.integers(0, 5, (4, 7) if own else 7)
    hits = np.asarray(accidental_hits(targets, jnp.asarray(candidates)))
    assert hits.dtype == bool
    assert hits.shape == (4, 7)
    for i, j in np.ndindex(4, 7):
        candidate = candidates[i, j] if own else candidates[j]
        assert hits[i, j] == (candidate in np.atleast_1d(targets[i]))


def test_other_shapes_are_named():
    for targets, candidates in (((3,), (2, 4)), ((3, 2, 1), (4,)), ((3,), (3, 4, 1))):
        with pytest.raises(UserError, match="do not fit"):
            accidental_hits(jnp.zeros(targets, int), jnp.zeros(candidates, int))


@pytest.mark.parametrize(("batch", "printed"), [(8, 0.1184), (64, 0.0156)])
def test_own_positive_drawn(batch, printed):
    """A public rule leaves out the latents at the anchor's own time, not the target."""
    length, num_negatives, offset, num_anchors = 128, 128, 3, 4000
    predicted = hit_rate(1 / (batch * (length - 1)), num_negatives)
    assert predicted == pytest.approx(printed, abs=5e-5)

    rng = np.random.default_rng(batch)
    sequence = rng.integers(0, batch, (num_anchors, 1))
    time = rng.integers(0, length - offset, (num_anchors, 1))
    drawn = (num_anchors, num_negatives)
    other = (time + rng.integers(1, length, drawn)) % length
    zero = np.zeros((1, 1), int)
    anchors = Position(sequence, time, zero, zero)
    candidates = Position(rng.integers(0, batch, drawn), other, zero, zero)
    observed = is_positive(anchors, candidates, offset).any(1).mean()
    error = 4 * np.sqrt(predicted * (1 - predicted) / num_anchors)
    assert observed == pytest.approx(predicted, abs=error)


def test_hit_rate_at_its_ends():
    densities = np.array([0.0, 1e-300, 1e-12, 0.5, 1.0])
    np.testing.assert_array_equal(hit_rate(densities, 0), 0.0)
    np.testing.assert_allclose(hit_rate(densities, 1), densities, rtol=1e-15)
    np.testing.assert_allclose(hit_rate(densities, 2), [0, 2e-300, 2e-12, 0.75, 1], rtol=1e-11)
    assert hit_rate(1, 3) == 1.0


def test_numbers_out_of_range_are_named():
    for density in (-0.1, float("nan"), np.array([0.5, 2.0])):
        with pytest.raises(UserError, match="in one draw is"):
            hit_rate(density, 3)
    with pytest.raises(UserError, match="num_draws is -1"):
        hit_rate(0.1, -1)
