"""Policy losses and advantages: closed forms and published formulas, rlax and distrax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.rl import entropy, gae, log_prob, policy_gradient_loss, ppo_loss, standardize, value_loss
from cpc.types import UserError
from tests.goldens.goldens import load_golden

RNG = np.random.default_rng(0)
LOGITS = jnp.asarray(RNG.normal(size=(4, 3, 5)), jnp.float32)
ADVANTAGES = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)
SOME = jnp.asarray(RNG.random((4, 3)) < 0.5)


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
    with pytest.raises(UserError, match=r"clip .*got 0"):
        ppo_loss(ADVANTAGES, ADVANTAGES, ADVANTAGES, 0)
    with pytest.raises(UserError, match="both or neither"):
        value_loss(ADVANTAGES, ADVANTAGES, clip=0.2)


def draw(seed=0, t=12, b=3, ends=0.2):
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, t, b)).astype(np.float32)
    return rewards, values, rng.random((t, b)) < ends, rng.normal(size=b).astype(np.float32)


def test_advantages_stop_at_resets():
    rewards, values, _, last_value = draw()
    is_last = np.zeros(rewards.shape, bool)
    is_last[4, 1] = True
    before, targets = gae(*map(jnp.asarray, (rewards, values, is_last, last_value)), 0.9, 0.8)
    np.testing.assert_allclose(targets, before + values, rtol=1e-5, atol=1e-5)
    rewards[5:], values[5:] = 7, np.nan
    after, _ = gae(*map(jnp.asarray, (rewards, values, is_last, last_value)), 0.9, 0.8)
    np.testing.assert_array_equal(before[:5, 1], after[:5, 1])
    assert np.isnan(after[:5, 0]).all()
    np.testing.assert_allclose(after[4, 1], rewards[4, 1] - values[4, 1], rtol=1e-6)


def test_advantages_are_float32_constants():
    rewards, values, is_last, last_value = map(jnp.asarray, draw())

    def total(rewards, values, last_value):
        return sum(x.sum() for x in gae(rewards, values, is_last, last_value, 0.9, 0.9))

    for gradient in jax.grad(total, (0, 1, 2))(rewards, values, last_value):
        np.testing.assert_array_equal(gradient, 0)
    half = (x.astype(jnp.bfloat16) for x in (rewards, values, last_value))
    rewards, values, last_value = half
    outputs = gae(rewards, values, is_last, last_value, 0.9, 0.9)
    assert {x.dtype for x in outputs} == {jnp.dtype("float32")}


def test_standard_advantages():
    advantages = standardize(jnp.asarray(draw()[0]))
    np.testing.assert_allclose([advantages.mean(), advantages.std()], [0, 1], atol=1e-6)
    np.testing.assert_array_equal(standardize(jnp.full((3, 2), 4.0)), 0)


META, CASES = load_golden("policy_losses.json")


@pytest.mark.parametrize("name", CASES)
def test_equals_rlax(name):
    params, inputs, outputs = CASES[name]
    clip, of_gae = params["clip"], {key: params[key] for key in ("discount", "lambda_")}
    arrays = {key: jnp.asarray(value) for key, value in inputs.items()}
    logits, old_logits, actions = (arrays.pop(key) for key in ("logits", "old_logits", "actions"))
    advantages, _ = gae(**arrays, **of_gae)

    def mean_ppo(logits):
        old = log_prob(old_logits, actions)
        return ppo_loss(log_prob(logits, actions), old, advantages, clip).mean()

    def mean_policy_gradient(logits):
        return policy_gradient_loss(log_prob(logits, actions), advantages).mean()

    found = lambda logits: {  # noqa: E731
        "advantages": advantages,
        "log_probs": log_prob(logits, actions),
        "entropy": entropy(logits),
        "ppo": mean_ppo(logits),
        "ppo_gradient": jax.grad(mean_ppo)(logits),
        "policy_gradient": mean_policy_gradient(logits),
        "policy_gradient_gradient": jax.grad(mean_policy_gradient)(logits),
    }
    found = jax.jit(found)(logits)
    assert found.keys() == outputs.keys()
    tolerance = META["tolerance"]
    for key, value in found.items():
        np.testing.assert_allclose(
            value, outputs[key], tolerance["f32_rtol"], tolerance["f32_atol"], err_msg=key
        )
