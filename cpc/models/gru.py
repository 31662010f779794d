"""The recurrence of a GRU with a gradient of its own.

    r = sigmoid(x_r + h W_r)    u = sigmoid(x_u + h W_u)    n = tanh(x_n + r (h W_n + b_n))
    h' = n + u (h - n)

(Cho et al. 2014, with the reset gate after the recurrent product, as in cuDNN and torch, where the
update gate is called z.) The input projections x are made for all steps at once outside. The
backward scan computes only what depends on the step after; the gradient of W is one product.

A leading axis of blocks makes W block diagonal (Hafner et al. 2023): each part of the state has
gates of its own, which read that part alone.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def steps_at_once() -> int:
    """Return how many steps the loops do in one turn.

    An accelerator then writes what they keep with one kernel for all of them, and starts half as
    many in all; a CPU, which starts none, is slower for it.
    """
    return 8 if _on_accelerator() else 1


def _on_accelerator():
    return jax.default_backend() != "cpu"


@jax.custom_vjp
def gru_scan(
    x: Float[Array, "t *blocks b gates"],
    w: Float[Array, "*blocks h gates"],
    bias: Float[Array, "*blocks h"],
    start: Float[Array, "*blocks b h"],
) -> Float[Array, "t *blocks b h"]:
    """Return the states after each step, time first; gates = 3 h, stacked r, u, n."""
    return _forward(x, w, bias, start)[0]


def _forward(x, w, bias, start):
    # An accelerator makes the gates again for the gradient, of all steps at once: a product more,
    # and nothing to write in each step but the state. On an H200 that takes 0.9 of the time; on a
    # CPU the product is what takes the time.
    again = _on_accelerator()

    def step(h, x):
        gates = _gates(x, h @ w, bias)
        _, u, n, _ = gates
        h = n + u * (h - n)
        return h, (h, None if again else jnp.concatenate(gates, axis=-1))

    _, (states, kept) = jax.lax.scan(step, start, jnp.split(x, 3, axis=-1), unroll=steps_at_once())
    return states, (w, start, states, (x, bias) if again else kept)


def _gates(x, p, bias):
    """The gates r, u, n and the recurrent part of n's sum, of inputs x and products p."""
    # Gate by gate, and not r and u as one array: a CPU would compute that once for each of
    # them, and take as long for gates that it need not keep as for the product.
    (x_r, x_u, x_n), (p_r, p_u, p_n) = x, jnp.split(p, 3, axis=-1)
    r, u = jax.nn.sigmoid(x_r + p_r), jax.nn.sigmoid(x_u + p_u)
    recurrent = p_n + bias[..., None, :]
    return r, u, jnp.tanh(x_n + r * recurrent), recurrent


def _backward(residuals, g):
    w, start, states, kept = residuals
    width = start.shape[-1]
    previous = jnp.concatenate([start[None], states[:-1]])
    if isinstance(kept, tuple):
        x, bias = kept
        gates = _gates(jnp.split(x, 3, axis=-1), previous @ w, bias)
    else:
        gates = jnp.split(kept, 4, axis=-1)
    r, u, n, recurrent = gates
    # Everything that does not depend on the steps after, for all steps at once: what the
    # derivative by h' is multiplied with to be the derivative by n's sum and by each gate of p.
    to_n = (1 - u) * (1 - n * n)
    to_p = (to_n * recurrent * r * (1 - r), (previous - n) * u * (1 - u), to_n * r)
    transposed = w.mT  # once: inside of the loop a CPU walks across w in each step, half as fast

    def step(dh, gates):
        g, to_p, u = gates
        dh = dh + g
        dp = jnp.concatenate([dh * to_gate for to_gate in to_p], axis=-1)
        return dh * u + dp @ transposed, dh

    dstart, dh = jax.lax.scan(
        step, jnp.zeros_like(start), (g, to_p, u), reverse=True, unroll=steps_at_once()
    )
    dp = jnp.concatenate([dh * to_gate for to_gate in to_p], axis=-1)
    dx = jnp.concatenate([dp[..., : 2 * width], dh * to_n], axis=-1)
    dw = _rows(previous).mT @ _rows(dp)
    return dx, dw, dp[..., 2 * width :].sum((0, -2)), dstart


def _rows(x):
    """(t, *blocks, b, n) -> (*blocks, t b, n)."""
    return jnp.moveaxis(x, 0, -3).reshape(*x.shape[1:-2], -1, x.shape[-1])


gru_scan.defvjp(_forward, _backward)
