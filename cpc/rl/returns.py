"""Advantages from rewards and values: how much better an action was than expected."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


def gae(
    rewards: Float[Array, "t b"],
    values: Float[Array, "t b"],
    is_last: Bool[Array, "t b"],
    last_value: Float[Array, " b"],
    discount: float | int,
    lambda_: float | int,
) -> tuple[Float[Array, "t b"], Float[Array, "t b"]]:
    """Return the generalised advantage estimates of b unrolls, and the targets of their values.

    A_t = sum_l (discount lambda)^l delta_(t + l),  delta_t = r_t + discount V_(t + 1) - V_t

    (Schulman et al. 2016, eq. 16), summed to the end of the episode or of the unroll; the target is
    A_t + V_t. With lambda 1 it is the discounted return minus the value, with lambda 0 the one-step
    TD error. Both are constants to a gradient.

    Args:
      rewards: of the action of each step.
      values: V of the observation before it.
      is_last: whether the episode ended with it, as in `Outcome`: V of the next observation is
        another episode's and counts as 0, also if a limit of time ended the episode.
      last_value: V of the observation after the last step.
      discount: gamma, of the next step's value.
      lambda_: of exponential averaging, from 0 (low variance) to 1 (no bias by the values).

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
    """Return advantages with mean 0 and standard deviation 1, as PPO uses in each minibatch.

    >>> standardize(jnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)
    """
    advantages = lax.stop_gradient(advantages.astype(jnp.float32))
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
