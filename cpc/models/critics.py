"""Critics: networks that score pairs (x, y), for estimates of mutual information.

Sizes as in Poole et al. (2019): two hidden layers of 256 ReLU, an embedding of 32.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


class SeparableCritic(nn.Module):
    """f(x, y) = g(x) . h(y): n networks' worth of work for n^2 scores.

    Scores begin with a variance of about 1: exponentials of larger ones can run away with MINE's
    average in the first steps.

    >>> import jax
    >>> critic = SeparableCritic(widths=(8,), embedding=4)
    >>> scores, _ = critic.init_with_output(jax.random.key(0), jnp.ones((5, 2)), jnp.ones((5, 3)))
    >>> scores.shape
    (5, 5)
    """

    widths: Sequence[int] = (256, 256)
    embedding: int = 32

    @nn.compact
    def __call__(self, x: Float[Array, "m dx"], y: Float[Array, "n dy"]) -> Float[Array, "m n"]:
        """Score every x with every y."""
        small = self.embedding**-0.5  # the variance of each of the embedding's numbers
        g = _mlp(x, self.widths, self.embedding, "x", small)
        h = _mlp(y, self.widths, self.embedding, "y", small)
        return jnp.einsum("md,nd->mn", g, h)


class JointCritic(nn.Module):
    """f(x, y) of the two side by side: n^2 passes, and interactions that no product has.

    The first layer is linear in x and y, so that it is computed once for each of them.
    """

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "m dx"], y: Float[Array, "n dy"]) -> Float[Array, "m n"]:
        """Score every x with every y."""
        first, *rest = self.widths
        shape = (x.shape[1] + y.shape[1], first)
        kernel = self.param("kernel", nn.initializers.he_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (first,))
        of_x, of_y = x @ kernel[: x.shape[1]] + bias, y @ kernel[x.shape[1] :]
        hidden = nn.relu(of_x[:, None] + of_y)  # (m, n, h)
        return _mlp(hidden, rest, 1, "pair")[..., 0]


class Baseline(nn.Module):
    """One number for each row: log a(x) of TUBA, or u(x, y) of FLO on the two side by side."""

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return the number of each row of x."""
        return _mlp(x, self.widths, 1, "x")[:, 0]


class GaussianConditional(nn.Module):
    """log q(y|x) of a normal law with independent dimensions, for CLUB (Cheng et al. 2020).

    Mean and log variance are networks of x, the log variance within -1 to 1 as in public code.
    """

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "m dx"], y: Float[Array, "n dy"]) -> Float[Array, "m n"]:
        """Score every y by log q(y_j|x_i), nats."""
        mean = _mlp(x, self.widths, y.shape[1], "mean")
        log_variance = nn.tanh(_mlp(x, self.widths, y.shape[1], "log_variance"))
        residual = jnp.square(y - mean[:, None]) * jnp.exp(-log_variance)[:, None]  # (m, n, d)
        constant = (log_variance + jnp.log(2 * jnp.pi)).sum(1)
        return -0.5 * (residual.sum(-1) + constant[:, None])


def _mlp(x, widths, out, name, variance=1.0):
    """ReLU layers that keep the mean square of x, and a linear one that scales it to `variance`."""
    keep = nn.initializers.he_normal()
    for i, width in enumerate(widths):
        x = nn.relu(nn.Dense(width, kernel_init=keep, name=f"{name}{i}")(x))
    last = nn.initializers.variance_scaling(variance, "fan_in", "truncated_normal")
    return nn.Dense(out, kernel_init=last, name=f"{name}_out")(x)
