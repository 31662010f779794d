"""Proposals: the three gradients, by enumeration and by learning; the law of the draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.losses import info_nce
from cpc.negatives.samplers import propose, proposed
from cpc.types import UserError
from tests.goldens.goldens import load_golden

RNG = jax.random.key(0)
_, CASES = load_golden("nce_mle_gradient.json")


def nce_objective(log_p, log_q, data, noise, k):
    """J = sum_x data(x) log sigma(D) + k sum_x noise(x) log sigma(-D), D = log p - log(k q)."""
    d = log_p - log_q - jnp.log(k)
    return (data * jax.nn.log_sigmoid(d)).sum() + k * (noise * jax.nn.log_sigmoid(-d)).sum()


@functools.partial(jax.jit, static_argnames="mode")
def objective(theta, k, data, q, noise, *, mode):
    """Value and gradient at proposals of the model itself or, fixed, of q."""

    def value(theta):
        logits = jnp.log(q) if mode == "fixed" else theta
        log_q = propose(RNG, logits, 1, mode).table
        return nce_objective(jax.nn.log_softmax(theta), log_q, data, noise, k)

    return jax.value_and_grad(value)(theta)


def arrays_of(given, *names):
    return (jnp.asarray(given[name], jnp.float32) for name in names)


@pytest.mark.parametrize("case", ["V10", "V4"])
@pytest.mark.parametrize("mode", ["stopped", "through"])
def test_noise_that_is_the_model_by_enumeration(case, mode):
    """Stopped: k / (k + 1) times the likelihood's gradient. Through: a constant, no gradient."""
    _, given, out = CASES[case]
    theta, data, q = arrays_of(given, "theta", "pd", "q")
    (p,) = arrays_of(out, "p")
    for k, ratio, constant in zip(
        given["k"], out["self_noise_ratio"], out["self_noise_objective"], strict=True
    ):
        value, gradient = objective(theta, float(k), data, q, p, mode=mode)
        assert float(value) == pytest.approx(constant, rel=1e-5)
        factor = ratio if mode == "stopped" else 0.0
        want = factor * np.array(out["mle_gradient"])
        np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=2e-6)


def test_fixed_noise_has_the_gradient_of_fixed_noise():
    _, given, out = CASES["V10"]
    theta, data, q = arrays_of(given, "theta", "pd", "q")
    for k, want in zip(given["k"], out["nce_gradient"], strict=True):
        _, gradient = objective(theta, float(k), data, q, q, mode="fixed")
        np.testing.assert_allclose(gradient, want, rtol=2e-4, atol=2e-6)


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
    return (
        jnp.asarray(rng.normal(size=5), jnp.float32),
        jnp.asarray(2 * rng.normal(size=(5, 8)), jnp.float32),
        where,
    )


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
    with pytest.raises(UserError, match="asked for 0"):
        propose(RNG, jnp.zeros(3), 0, "stopped")
    with pytest.raises(UserError, match="no classes"):
        propose(RNG, jnp.zeros(0), 1, "stopped")
    with pytest.raises(UserError, match='cannot be "fixed"'):
        proposed(3, "fixed")
    with pytest.raises(UserError, match="asked for 0"):
        proposed(0, "stopped")
