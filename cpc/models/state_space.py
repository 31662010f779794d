"""A context network of diagonal linear recurrences, which can be evaluated in parallel over time.

The layers are linear recurrent units (Orvieto et al. 2023, "Resurrecting recurrent neural networks
for long sequences"), a form of the diagonal state-space models S4D and S5 (Smith et al. 2023).
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Complex, Float

from cpc.models.contexts import RecurrentContext
from cpc.models.layers import Dense

#: Range of |lambda| at initialization. The memory 1 / (1 - |lambda|) is 10 to 1000 latents.
RING = 0.9, 0.999


def init_state_space(rng: Array, width: int) -> dict[str, Array]:
    """Return the initial parameters of `apply_state_space`, all real and float32.

    The eigenvalues lambda = exp(-exp(nu) + i exp(theta)) are uniform on the ring between the radii
    `RING`, and the matrices B and C are normal with variance 1 / width.
    """
    keys = jax.random.split(rng, 4)
    inner, outer = RING
    dtype, scale = jnp.float32, 1 / math.sqrt(2 * width)
    radii = jnp.sqrt(jax.random.uniform(keys[0], (width,), dtype, inner**2, outer**2))
    phases = jax.random.uniform(keys[1], (width,), dtype, 1e-3, 2 * math.pi)
    return {
        "nu": jnp.log(-jnp.log(radii)),
        "theta": jnp.log(phases),
        "B": scale * jax.random.normal(keys[2], (width, 2 * width), dtype),
        "C": scale * jax.random.normal(keys[3], (2 * width, width), dtype),
        "D": jnp.ones((width,), dtype),
    }


def apply_state_space(
    params: dict[str, Array],
    u: Float[Array, "b t d"],
    start: Complex[Array, "b n"] | None = None,
    parallel: bool | None = None,
) -> tuple[Float[Array, "b t d"], Complex[Array, "b n"]]:
    """Return a layer's outputs y and its last state x, starting from zero or a given state.

        x_t = lambda * x_{t-1} + sqrt(1 - |lambda|^2) * (B u_t)        y_t = Re(C x_t) + D * u_t

    The root keeps the variance of x equal for all lambda. The result is the same for a step-by-step
    evaluation and for an associative scan over time (`parallel`), which takes log t steps. By
    default, the scan is used on accelerators.

    >>> params = init_state_space(jax.random.key(0), 4)
    >>> y, x = apply_state_space(params, jnp.ones((2, 5, 4)))
    >>> y.shape, x.shape, x.dtype
    ((2, 5, 4), (2, 4), dtype('complex64'))
    """
    decay = jnp.exp(jax.lax.complex(-jnp.exp(params["nu"]), jnp.exp(params["theta"])))
    scale = jnp.sqrt(-jnp.expm1(-2 * jnp.exp(params["nu"])))
    u = u.astype(jnp.float32)
    real, imaginary = jnp.split(u @ params["B"], 2, axis=-1)
    inputs = jax.lax.complex(scale * real, scale * imaginary).swapaxes(0, 1)
    start = jnp.zeros_like(inputs[0]) if start is None else start
    x = scan_states(decay, inputs, start, parallel)
    stacked = jnp.concatenate([x.real, -x.imag], axis=-1).swapaxes(0, 1)
    return stacked @ params["C"] + params["D"] * u, x[-1]


def scan_states(
    decay: Complex[Array, " n"],
    inputs: Complex[Array, "t b n"],
    start: Complex[Array, "b n"],
    parallel: bool | None = None,
) -> Complex[Array, "t b n"]:
    """Return x_t = decay * x_{t-1} + inputs_t for each step, where x_0 is `start`."""
    parallel = jax.default_backend() != "cpu" if parallel is None else parallel
    if not parallel:

        def step(x: Array, one: Array) -> tuple[Array, Array]:
            x = decay * x + one
            return x, x

        return jax.lax.scan(step, start, inputs)[1]

    def join(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    inputs = inputs.at[0].add(decay * start)
    decays = jnp.broadcast_to(decay, (len(inputs), 1, len(decay)))
    return jax.lax.associative_scan(join, (decays, inputs))[1]


class StateSpace(RecurrentContext):
    """Residual layers of a norm, a linear recurrence (`apply_state_space`) and a gate.

        h <- h + p * sigmoid(q)    where [p, q] = gelu(y) W and y is the recurrence of norm(h)

    The recurrence is computed in float32, also if `dtype` is narrower.
    """

    width: int = 256
    num_layers: int = 4
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def advance(
        self, z: Float[Array, "b t d"], state: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, "b t h"], tuple[Array, ...]]:
        """Return the contexts of z and the next state, which is complex (b, h) per layer."""
        h, ends = Dense(self.width, dtype=self.dtype, name="input")(z), []
        for i in range(self.num_layers):
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm{i}")(h)
            params = self.param(f"recurrence{i}", init_state_space, self.width)
            y, end = apply_state_space(params, y, None if state is None else state[i])
            gated = Dense(2 * self.width, dtype=self.dtype, name=f"gate{i}")(nn.gelu(y))
            p, q = jnp.split(gated, 2, axis=-1)
            h = h + p * nn.sigmoid(q)
            ends.append(end)
        return h, tuple(ends)
