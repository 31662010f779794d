"""Policy losses: closed-form gradients and published formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.rl import entropy, policy_gradient_loss, ppo_loss, value_loss
from cpc.types import UserError

RNG = np.random.default_rng(0)
LOGITS = jnp.asarray(RNG.normal(size=(4, 3, 5)), jnp.float32)
ADVANTAGES = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)
SOME = jnp.asarray(RNG.random((4, 3)) < 0.5)


def test_ppo_clips_improvements():
    """No gradient for good and more likely, or bad and less likely actions."""
    ratio, advantage, loss, slope = jnp.array([
        (1.5, 2.0, -2.4, 0.0), (0.5, 2.0, -1.0, -2.0), (1.5, -2.0, 3.0, 2.0),
        (0.5, -2.0, 1.6, 0.0), (1.1, 2.0, -2.2, -2.0), (0.9, -2.0, 1.8, 2.0),
    ]).T  # fmt: skip
    old = jnp.full(6, jnp.log(0.3))
    value, pull = jax.vjp(lambda r: ppo_loss(old + jnp.log(r), old, advantage, 0.2), ratio)
    np.testing.assert_allclose([value, *pull(jnp.ones(6))], [loss, slope], rtol=1e-5, atol=1e-6)


def test_clipped_values_equal_purejaxrl():
    value, old, target = RNG.normal(size=(3, 40)).astype(np.float32)
    clipped = old + (value - old).clip(-0.2, 0.2)
    losses = 0.5 * np.maximum(np.square(value - target), np.square(clipped - target))
    value, old, target = map(jnp.asarray, (value, old, target))
    actual = value_loss(value, target, old_values=old, clip=0.2)
    np.testing.assert_allclose(actual, losses, rtol=1e-5)
    slope = jax.jit(jax.grad(lambda value: value_loss(value, target).sum()))(value)
    np.testing.assert_allclose(slope, value - target, rtol=1e-6)


def test_impossible_actions_have_finite_gradients():
    logits = jnp.array([[0.0, 1.0, -jnp.inf]])
    value, gradient = jax.jit(jax.value_and_grad(lambda logits: entropy(logits).sum()))(logits)
    np.testing.assert_allclose(value, entropy(logits[:, :2])[0], rtol=1e-6)
    assert np.isfinite(gradient).all()


LOSSES = {
    "policy_gradient": lambda x, where: policy_gradient_loss(x, ADVANTAGES, where),
    "ppo": lambda x, where: ppo_loss(x, ADVANTAGES, ADVANTAGES, 0.2, where),
    "value": lambda x, where: value_loss(x, ADVANTAGES, where),
    "clipped value": lambda x, where: value_loss(
        x, ADVANTAGES, where, old_values=2 * ADVANTAGES, clip=0.2
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_masked_steps_may_be_nan(name):
    x = LOGITS[..., 0]
    plain = LOSSES[name](x, None)
    holed = jnp.where(SOME, x, jnp.nan)
    loss, pull = jax.vjp(lambda x: LOSSES[name](x, SOME), holed)
    np.testing.assert_allclose(loss, jnp.where(SOME, plain, 0.0), rtol=1e-6)
    (gradient,) = pull(jnp.ones_like(loss))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~SOME], 0)
    assert LOSSES[name](x.astype(jnp.bfloat16), SOME).dtype == jnp.float32


def test_targets_have_no_gradient():
    def total(old, advantages, targets):
        loss = ppo_loss(LOGITS[..., 0], old, advantages, 0.2)
        loss += policy_gradient_loss(old, advantages)
        loss += value_loss(LOGITS[..., 0], targets, old_values=old, clip=0.2)
        return (loss + jax.lax.stop_gradient(advantages) * old).sum()

    for gradient in jax.grad(total, (0, 1, 2))(LOGITS[..., 1], ADVANTAGES, LOGITS[..., 2]):
        np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_invalid_input_is_rejected():
    with pytest.raises(UserError, match="clip is 0"):
        ppo_loss(ADVANTAGES, ADVANTAGES, ADVANTAGES, 0)
    with pytest.raises(UserError, match="both or neither"):
        value_loss(ADVANTAGES, ADVANTAGES, clip=0.2)
