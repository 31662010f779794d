"""Policy losses, value losses and advantages, as float32 values per step for the caller to average.

Steps outside of the mask `where` have loss 0 and gradient 0, and may contain NaN.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cpc.types import UserError


def log_prob(
    logits: Float[Array, "*shape actions"], taken: Int[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Return the log probabilities of the actions `taken` under the softmax of the logits.

    >>> log_prob(jnp.zeros((1, 4)), jnp.array([2])) + jnp.log(4.0)
    Array([0.], dtype=float32)
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return jnp.take_along_axis(log_probs, taken[..., None], -1)[..., 0]


def policy_gradient_loss(
    log_probs: Float[Array, "*shape"],
    advantages: Float[Array, "*shape"],
    where: Bool[Array, "*shape"] | None = None,
) -> Float[Array, "*shape"]:
    """Return the actor-critic loss -log pi(a) A of actions a with constant advantages A.

    Its gradient for the logits is -(onehot(a) - pi) A. This is the loss of A3C (Mnih et al. 2016,
    section 4) and of A2C, which is A3C without threads.
    """
    log_probs, advantages = _mask(where, log_probs, advantages)
    return -log_probs * lax.stop_gradient(advantages)


def ppo_loss(
    log_probs: Float[Array, "*shape"],
    old_log_probs: Float[Array, "*shape"],
    advantages: Float[Array, "*shape"],
    clip: float | int,
    where: Bool[Array, "*shape"] | None = None,
) -> Float[Array, "*shape"]:
    """Return the clipped surrogate loss of proximal policy optimization.

    L = -min(r A, clip(r, 1 - e, 1 + e) A),  r = pi(a) / pi_old(a),  e = `clip`

    This is the negated eq. 7 of Schulman et al. (2017). At r = 1 it has the gradient of
    `policy_gradient_loss`. The gradient is 0 if A > 0 and r > 1 + e, or if A < 0 and r < 1 - e.
    Advantages A are usually standardized. If the probability of a good action doubles, the ratio is
    clipped to 1.2:

    >>> ppo_loss(jnp.log(jnp.array([0.8])), jnp.log(jnp.array([0.4])), jnp.ones(1), 0.2)
    Array([-1.2], dtype=float32)
    """
    _check_clip(clip)
    log_probs, old_log_probs, advantages = _mask(where, log_probs, old_log_probs, advantages)
    advantages = lax.stop_gradient(advantages)
    ratio = jnp.exp(log_probs - lax.stop_gradient(old_log_probs))
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages)


def value_loss(
    values: Float[Array, "*shape"],
    targets: Float[Array, "*shape"],
    where: Bool[Array, "*shape"] | None = None,
    *,
    old_values: Float[Array, "*shape"] | None = None,
    clip: float | int | None = None,
) -> Float[Array, "*shape"]:
    """Return half the squared error of the values, optionally clipped as in PPO.

    L = (V - R)^2 / 2, or max[(V - R)^2, (V_old + clip(V - V_old, -e, e) - R)^2] / 2

    V are the values and R the targets, which are constant. The second form, with e = `clip`, is
    from OpenAI Baselines (Engstrom et al. 2020, section 3). It is constant if V has moved by more
    than e towards R.

    >>> one, zero = jnp.ones(1), jnp.zeros(1)
    >>> value_loss(one, one), value_loss(one, one, old_values=zero, clip=0.5)
    (Array([0.], dtype=float32), Array([0.125], dtype=float32))
    """
    values, targets = _mask(where, values, targets)
    targets = lax.stop_gradient(targets)
    loss = jnp.square(values - targets)
    if old_values is not None and clip is not None:
        _check_clip(clip)
        old = lax.stop_gradient(_mask(where, old_values)[0])
        near = old + jnp.clip(values - old, -clip, clip)
        loss = jnp.maximum(loss, jnp.square(near - targets))
    elif old_values is not None or clip is not None:
        raise UserError("value_loss got only one of clip and old_values: pass both or neither")
    return loss / 2


def entropy(logits: Float[Array, "*shape actions"]) -> Float[Array, "*shape"]:
    """Return the entropy of softmax(logits) in nats, where a logit of -inf excludes an action.

    >>> entropy(jnp.array([0.0, 0.0, -jnp.inf])) - jnp.log(2.0)
    Array(0., dtype=float32)
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    probs = jnp.exp(log_probs)
    return -(probs * jnp.where(probs > 0, log_probs, 0.0)).sum(-1)


def _mask(where: Any, *arrays: Any) -> Any:
    """Convert arrays to float32, with entries outside of the mask set to 0."""
    if where is None:
        return [x.astype(jnp.float32) for x in arrays]
    return [jnp.where(where, x, 0).astype(jnp.float32) for x in arrays]


def _check_clip(clip):
    if not clip > 0:
        raise UserError(f"clip must be above 0 (got {clip})")


def gae(
    rewards: Float[Array, "t b"],
    values: Float[Array, "t b"],
    is_last: Bool[Array, "t b"],
    last_value: Float[Array, " b"],
    discount: float | int,
    lambda_: float | int,
) -> tuple[Float[Array, "t b"], Float[Array, "t b"]]:
    """Return generalised advantage estimates for b rollouts, and the value function's targets.

    A_t = sum_l (discount lambda)^l delta_(t + l),  delta_t = r_t + discount V_(t + 1) - V_t

    The sum extends to the end of the episode or rollout (Schulman et al. 2016, eq. 16), and the
    target is A_t + V_t. With lambda = 1, A_t is the discounted return minus the value. With
    lambda = 0, it is the one-step TD error. Both results have no gradient.

    Args:
      rewards: reward r of each step.
      values: value V of the observation before each step.
      is_last: whether the episode ended with the step, as in `Outcome`. The next observation then
        belongs to another episode, and its V counts as 0, even if a time limit ended the episode.
      last_value: value V of the observation after the last step.
      discount: discount factor per step.
      lambda_: decay factor for the weight of longer returns, between 0 and 1.

    >>> one, zero = jnp.ones((2, 1)), jnp.zeros((2, 1))
    >>> advantages, _ = gae(one, zero, jnp.array([[False], [True]]), jnp.zeros(1), 0.5, 1.0)
    >>> advantages[:, 0]
    Array([1.5, 1. ], dtype=float32)
    """
    rewards, values, last_value = (
        lax.stop_gradient(x.astype(jnp.float32)) for x in (rewards, values, last_value)
    )
    next_values = jnp.concatenate([values[1:], last_value[None]])
    errors = rewards + discount * jnp.where(is_last, 0.0, next_values) - values

    def backward(later, now):
        error, ended = now
        advantage = error + discount * lambda_ * jnp.where(ended, 0.0, later)
        return advantage, advantage

    zero = jnp.zeros_like(last_value)
    _, advantages = lax.scan(backward, zero, (errors, is_last), reverse=True)
    return advantages, advantages + values


def standardize(advantages: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Scale advantages to mean 0 and standard deviation 1, as in each minibatch of PPO.

    >>> standardize(jnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)
    """
    advantages = lax.stop_gradient(advantages.astype(jnp.float32))
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
