"""Critics: networks that score pairs (x, y) to estimate mutual information.

Default sizes follow Poole et al. (2019): two hidden layers of 256 ReLUs and an embedding of 32.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


class SeparableCritic(nn.Module):
    """The separable critic f(x, y) = g(x) . h(y): n network evaluations for n^2 scores.

    Scores start with a variance of about 1: with larger ones, MINE's average of exponentials can
    diverge in the first steps.
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
        """Return the scores of all pairs."""
        small = self.embedding**-0.5  # the variance of each embedding entry
        g = _mlp(x, self.widths, self.embedding, "x", small)
        h = _mlp(y, self.widths, self.embedding, "y", small)
        return jnp.einsum("md,nd->mn", g, h)


class JointCritic(nn.Module):
    """A network f(x, y) of the concatenation: n^2 evaluations, not limited to inner products.

    The first layer is linear in x and y, so it is computed once for each of them.
    """

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "m dx"], y: Float[Array, "n dy"]) -> Float[Array, "m n"]:
        """Return the scores of all pairs."""
        first, *rest = self.widths
        shape = (x.shape[1] + y.shape[1], first)
        kernel = self.param("kernel", nn.initializers.he_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (first,))
        hidden_x, hidden_y = x @ kernel[: x.shape[1]] + bias, y @ kernel[x.shape[1] :]
        hidden = nn.relu(hidden_x[:, None] + hidden_y)  # (m, n, h)
        return _mlp(hidden, rest, 1, "pair")[..., 0]


class Baseline(nn.Module):
    """A scalar network: log a(x) of TUBA, or u(x, y) of FLO on the concatenation."""

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return one number per row."""
        return _mlp(x, self.widths, 1, "x")[:, 0]


class GaussianConditional(nn.Module):
    """A diagonal Gaussian log q(y|x) for CLUB (Cheng et al. 2020).

    Mean and log variance are networks of x; the log variance is in -1 to 1 as in public code.
    """

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "m dx"], y: Float[Array, "n dy"]) -> Float[Array, "m n"]:
        """Return log q(y_j|x_i) of all pairs, in nats."""
        mean = _mlp(x, self.widths, y.shape[1], "mean")
        log_variance = nn.tanh(_mlp(x, self.widths, y.shape[1], "log_variance"))
        residual = jnp.square(y - mean[:, None]) * jnp.exp(-log_variance)[:, None]  # (m, n, d)
        constant = (log_variance + jnp.log(2 * jnp.pi)).sum(1)
        return -0.5 * (residual.sum(-1) + constant[:, None])


def _mlp(x, widths, out, name, variance=1.0):
    """Apply ReLU layers that keep the mean square, then a linear one that scales to `variance`."""
    he_normal = nn.initializers.he_normal()
    for i, width in enumerate(widths):
        x = nn.relu(nn.Dense(width, kernel_init=he_normal, name=f"{name}{i}")(x))
    last = nn.initializers.variance_scaling(variance, "fan_in", "truncated_normal")
    return nn.Dense(out, kernel_init=last, name=f"{name}_out")(x)
