"""Proposals: the law of the draws, which gradients flow, corrected scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import info_nce
from cpc.negatives.samplers import propose, proposed
from cpc.types import UserError

RNG = jax.random.key(0)


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, lambda f: jax.jit(lambda x: jax.lax.map(f, x[None])[0])]
)
def test_fixed_noise_must_not_follow_a_trained_array(transform):
    def loss(theta):
        return propose(RNG, 2 * theta, 3, "fixed").log_q.sum()

    jax.eval_shape(transform(loss), jnp.zeros(4))
    with pytest.raises(UserError, match='choose "stopped"'):
        jax.eval_shape(jax.grad(transform(loss)), jnp.zeros(4))


def test_draws_follow_q():
    """Chi-square with 4 degrees of freedom; no impossible or masked class is ever drawn."""
    logits = jnp.array([-jnp.inf, 0.0, 1.0, jnp.nan, 2.0, -1.0, 0.5, -jnp.inf])
    draw = jax.jit(lambda rng: propose(rng, logits, 50_000, "stopped", jnp.arange(8) != 3))
    proposal = draw(jax.random.key(4))
    q = np.exp(np.asarray(proposal.table, np.float64))
    np.testing.assert_array_equal(q[[0, 3, 7]], 0.0)
    assert q.sum() == pytest.approx(1.0, abs=1e-6)
    counts, want = np.bincount(proposal.ids, minlength=8), 50_000 * q
    assert counts[q == 0].sum() == 0
    assert ((counts - want)[q > 0] ** 2 / want[q > 0]).sum() < 18.5  # 0.1 % of samples lie above
    np.testing.assert_array_equal(proposal.log_q, np.asarray(proposal.table)[proposal.ids])
    fixed = propose(RNG, logits, 1, "fixed", jnp.arange(8) != 3)
    np.testing.assert_allclose(fixed.table, proposal.table, rtol=1e-6)


def test_a_distribution_for_each_anchor():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 6)), jnp.float32)
    where = jnp.array([[True] * 6, [False] * 6, [False] * 5 + [True]])
    targets, columns = jnp.array([2, 0, 5]), jnp.array([[2, 1], [0, 0], [5, 4]])

    @jax.jit
    def draw(rng):
        proposal = propose(rng, logits, 4, "through", where)
        of_targets = [proposal.log_q_of(x) for x in (targets, columns)]
        return proposal.ids, proposal.log_q, proposal.table, of_targets

    ids, log_q, table, (of_targets, of_columns) = jax.device_get(draw(RNG))
    assert ids.shape == log_q.shape == (3, 4)
    np.testing.assert_allclose(table[0], jax.nn.log_softmax(logits[0]), rtol=1e-6)
    assert np.isneginf(table[1]).all()
    np.testing.assert_array_equal(ids[2], 5)
    np.testing.assert_array_equal(log_q[2], 0.0)
    np.testing.assert_array_equal(of_targets, table[np.arange(3), targets])
    np.testing.assert_array_equal(of_columns[:, 0], of_targets)


def test_only_through_has_a_gradient_and_only_where_allowed():
    logits, where = jnp.array([0.0, jnp.nan, 1.0]), jnp.array([True, False, True])

    @jax.jit
    def slopes(logits):
        def total(logits, mode):
            return propose(RNG, logits, 8, mode, where).log_q.sum()

        return [jax.grad(total)(logits, mode) for mode in ("stopped", "through")]

    stopped, gradient = map(np.asarray, slopes(logits))
    np.testing.assert_array_equal(stopped, 0.0)
    assert gradient[1] == 0.0
    assert gradient[0] == pytest.approx(-gradient[2], abs=1e-5)
    assert abs(gradient[0]) > 0.1


def scored_rows():
    rng = np.random.default_rng(2)
    where = jnp.asarray(rng.random((5, 8)) < 0.7).at[0].set(False)
    return jnp.float32(rng.normal(size=5)), jnp.float32(2 * rng.normal(size=(5, 8))), where


def full_loss(positive, negatives, where, num):
    """InfoNCE with the mean exponential of all allowed negatives, `num` times."""
    r = jnp.maximum(where.sum(-1, keepdims=True), 1)
    return info_nce(positive, negatives - jnp.log(r) + jnp.log(num), where)


def test_proposal_by_exact_scores_has_no_variance():
    positive, negatives, where = scored_rows()

    @jax.jit
    def both(negatives):
        def of_mode(mode):
            def total(negatives):
                losses = info_nce(positive, *proposed(3, mode)(RNG, positive, negatives, where))
                return losses.sum(), losses

            return jax.grad(total, has_aux=True)(negatives)

        full = jax.grad(lambda x: full_loss(positive, x, where, 3).sum())(negatives)
        return [*map(of_mode, ("stopped", "through")), (full, full_loss(*scored_rows(), 3))]

    (_, stopped), (slope, through), (want, losses) = both(negatives)
    for found in (stopped, through):
        np.testing.assert_allclose(found, losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sharpness", [0, 1.5])
def test_corrected_draws_estimate_the_mean_exponential(sharpness):
    positive, negatives, where = scored_rows()
    choose = jax.jit(proposed(40_000, "stopped", sharpness))
    scores, _ = choose(RNG, positive, negatives, where)
    want = np.where(where, np.exp(negatives), 0.0).sum(-1)[1:] / np.asarray(where).sum(-1)[1:]
    np.testing.assert_allclose(np.exp(scores[1:]).mean(-1), want, rtol=0.05)


def test_bad_proposals():
    for call, match in (
        (lambda: propose(RNG, jnp.zeros(3), 0, "stopped"), "asked for 0"),
        (lambda: propose(RNG, jnp.zeros(0), 1, "stopped"), "no classes"),
        (lambda: proposed(3, "fixed"), 'cannot be "fixed"'),
        (lambda: proposed(0, "stopped"), "asked for 0"),
    ):
        with pytest.raises(UserError, match=match):
            call()
