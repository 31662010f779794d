"""Critics: networks that score pairs (x, y) to estimate mutual information.

As in Poole et al. (2019), the defaults are two hidden layers of 256 ReLUs and 32-d embeddings.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


class SeparableCritic(nn.Module):
    """A separable critic, f(x, y) = g(x) . h(y), which computes n^2 scores from n evaluations.

    The initial scores have a variance of about 1. With a larger variance, MINE's average of
    exponentials can diverge in the first steps.
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
        small = self.embedding**-0.5  # initial variance of each embedding entry
        g = _mlp(x, self.widths, self.embedding, "x", small)
        h = _mlp(y, self.widths, self.embedding, "y", small)
        return jnp.einsum("md,nd->mn", g, h)


class JointCritic(nn.Module):
    """A network f(x, y) on concatenated pairs, which is not limited to inner products.

    It is evaluated for all n^2 pairs, except for the linear first layer, which is computed once for
    each x and each y.
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
    """A network with scalar output: log a(x) in TUBA, or u(x, y) of concatenated pairs in FLO."""

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return one number per row."""
        return _mlp(x, self.widths, 1, "x")[:, 0]


class GaussianConditional(nn.Module):
    """A diagonal Gaussian q(y|x) for CLUB (Cheng et al. 2020).

    Mean and log variance are networks of x. As in public code, the log variance is within -1 to 1.
    """

    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Float[Array, "m dx"], y: Float[Array, "n dy"]) -> Float[Array, "m n"]:
        """Return log q(y_j|x_i) for all pairs, in nats."""
        mean = _mlp(x, self.widths, y.shape[1], "mean")
        log_variance = nn.tanh(_mlp(x, self.widths, y.shape[1], "log_variance"))
        residual = jnp.square(y - mean[:, None]) * jnp.exp(-log_variance)[:, None]  # (m, n, d)
        constant = (log_variance + jnp.log(2 * jnp.pi)).sum(1)
        return -0.5 * (residual.sum(-1) + constant[:, None])


def _mlp(x, widths, out, name, variance=1.0):
    """Apply ReLU layers, then a linear layer whose initial outputs have the given variance."""
    he_normal = nn.initializers.he_normal()
    for i, width in enumerate(widths):
        x = nn.relu(nn.Dense(width, kernel_init=he_normal, name=f"{name}{i}")(x))
    last = nn.initializers.variance_scaling(variance, "fan_in", "truncated_normal")
    return nn.Dense(out, kernel_init=last, name=f"{name}_out")(x)
