"""Context networks g_ar, which map latents to contexts causally, for inputs of any size.

On sequences (b, t, d), c_t only depends on z_1 .. z_t. A sequence can be processed in pieces:
`advance(z, state)` continues from the `state` after the previous latents (None at the start) and
returns the contexts of z and the next state. On images (b, i, j, d), c_ij only depends on rows
1 .. i of the grid.
"""

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.image_encoders import convolve_images
from cpc.models.layers import Conv, Dense, LayerStack
from cpc.types import UserError


def _choose_unroll():
    # Unrolling halves the number of kernel launches on an accelerator, but is slower on a CPU.
    return 1 if jax.default_backend() == "cpu" else 8


@jax.custom_vjp
def gru_scan(
    x: Float[Array, "t *blocks b gates"],
    w: Float[Array, "*blocks h gates"],
    bias: Float[Array, "*blocks h"],
    start: Float[Array, "*blocks b h"],
) -> Float[Array, "t *blocks b h"]:
    """Return the state of a GRU after each step, time first.

    The last axis of x and w has size gates = 3 h and stacks the gates r, u and n:

        r = sigmoid(x_r + h W_r)    u = sigmoid(x_u + h W_u)    n = tanh(x_n + r (h W_n + b_n))
        h' = n + u (h - n)

    This is the GRU of Cho et al. (2014) with the reset gate after the recurrent product, as in
    cuDNN and torch; x are the input projections. The backward scan only computes terms that depend
    on the following step; the gradient of W is one product. If x has a blocks axis, W is block
    diagonal in these blocks.
    """
    return _gru_forward(x, w, bias, start)[0]


def _gru_forward(x, w, bias, start):
    # On an accelerator, each step only stores its state, and the backward pass recomputes all gates
    # with one more product. This takes 0.9 of the time on an H200, but would be slow on a CPU.
    recompute = jax.default_backend() != "cpu"

    def step(h, x):
        gates = compute_gates(x, h @ w, bias)
        _, u, n, _ = gates
        h = n + u * (h - n)
        return h, (h, None if recompute else jnp.concatenate(gates, axis=-1))

    x_gates = jnp.split(x, 3, axis=-1)
    _, (states, gates) = jax.lax.scan(step, start, x_gates, unroll=_choose_unroll())
    return states, (w, start, states, (x, bias) if recompute else gates)


def compute_gates(x: Sequence[Array], p: Array, bias: Array) -> tuple[Array, ...]:
    """Return the gates r, u, n of `gru_scan` for p = h W and the recurrent part of n's argument."""
    # r and u are separate arrays, because a CPU would compute a joint array twice.
    (x_r, x_u, x_n), (p_r, p_u, p_n) = x, jnp.split(p, 3, axis=-1)
    r, u = jax.nn.sigmoid(x_r + p_r), jax.nn.sigmoid(x_u + p_u)
    recurrent = (p_n + bias[..., None, :]).astype(p_n.dtype)  # as in `cpc.models.layers`
    return r, u, jnp.tanh(x_n + r * recurrent), recurrent


def _gru_backward(residuals, g):
    w, start, states, saved = residuals
    width = start.shape[-1]
    previous = jnp.concatenate([start[None], states[:-1]])
    if isinstance(saved, tuple):
        x, bias = saved
        gates = compute_gates(jnp.split(x, 3, axis=-1), previous @ w, bias)
    else:
        gates = jnp.split(saved, 4, axis=-1)
    r, u, n, recurrent = gates
    # Factors from the gradient of h' to the gradients of n's argument and of each gate of p. They
    # do not depend on later steps, so they are computed for all steps at once.
    to_n = (1 - u) * (1 - n * n)
    to_p = (to_n * recurrent * r * (1 - r), (previous - n) * u * (1 - u), to_n * r)
    # Transposed outside of the loop, because strided access to w halves the speed on a CPU.
    transposed = w.mT

    def step(dh, gates):
        g, to_p, u = gates
        dh = dh + g
        dp = jnp.concatenate([dh * to_gate for to_gate in to_p], axis=-1)
        return dh * u + dp @ transposed, dh

    options = {"reverse": True, "unroll": _choose_unroll()}
    dstart, dh = jax.lax.scan(step, jnp.zeros_like(start), (g, to_p, u), **options)
    dp = jnp.concatenate([dh * to_gate for to_gate in to_p], axis=-1)
    dx = jnp.concatenate([dp[..., : 2 * width], dh * to_n], axis=-1)
    dw = _flatten_steps(previous).mT @ _flatten_steps(dp)
    return dx, dw, dp[..., 2 * width :].sum((0, -2)), dstart


def _flatten_steps(x):
    """Merge time into the batch axis, from (t, *blocks, b, n) to (*blocks, t b, n)."""
    return jnp.moveaxis(x, 0, -3).reshape(*x.shape[1:-2], -1, x.shape[-1])


gru_scan.defvjp(_gru_forward, _gru_backward)


class RecurrentContext(LayerStack):
    """A context network whose state summarises all previous latents."""

    def __call__(self, z: Float[Array, "b t d"]) -> Float[Array, "b t h"]:
        """Return the contexts of sequences, starting from zero states."""
        return self.advance(z)[0]


class FeedForwardContext(LayerStack):
    """A context network whose outputs depend on the current and the `reach` previous latents."""

    def advance(
        self, z: Float[Array, "b t d"], state: Float[Array, "b r d"] | None = None
    ) -> tuple[Float[Array, "b t h"], Float[Array, "b r2 d"]]:
        """Return the contexts of z and the next state, given the previous latents in `state`."""
        joined = z if state is None else jnp.concatenate([state, z], axis=1)
        contexts = self(joined)[:, joined.shape[1] - z.shape[1] :]
        return contexts, joined[:, max(0, joined.shape[1] - self.reach) :]


class GRU(RecurrentContext):
    """Gated recurrent units with zero initial states; the paper uses one layer of width 256.

    Recurrent weights are block diagonal if `blocks` > 1, as in DreamerV3 (Hafner et al. 2023).
    """

    width: int = 256
    num_layers: int = 1
    dtype: DTypeLike = jnp.float32
    blocks: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.width % self.blocks:
            raise UserError(f"GRU width {self.width} is not divisible by its {self.blocks} blocks")

    @nn.compact
    def advance(
        self, z: Float[Array, "b t d"], state: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, "b t h"], tuple[Array, ...]]:
        """Return the contexts of z and the next state, which is (b, h) per layer."""
        blocks = (self.blocks,) if self.blocks > 1 else ()
        width = self.width // self.blocks

        def split(x):  # (b, ..., n) -> (..., *blocks, b, n / blocks)
            parts = x.reshape(*x.shape[:-1], *blocks, x.shape[-1] // self.blocks)
            return jnp.moveaxis(parts, 0, -2)

        h, ends = z.astype(self.dtype), []
        for i in range(self.num_layers):
            x = Dense(3 * self.width, dtype=self.dtype, name=f"input{i}")(h)
            w = self.param(f"recurrent{i}", _orthogonal_gates, (*blocks, width, 3 * width))
            bias = self.param(f"bias{i}", nn.initializers.zeros, (self.width,))
            zero = jnp.zeros((z.shape[0], self.width), self.dtype)
            start = zero if state is None else state[i].astype(self.dtype)
            w, bias = w.astype(self.dtype), bias.astype(self.dtype).reshape(*blocks, width)
            states = gru_scan(split(x), w, bias, split(start))
            h = jnp.moveaxis(states, -2, 0).reshape(*z.shape[:2], self.width)
            ends.append(h[:, -1])
        return h, tuple(ends)


def _orthogonal_gates(rng, shape, dtype=jnp.float32):
    """Draw an orthogonal matrix per gate, concatenated along the columns, for each block."""
    *blocks, width, stacked = shape
    if blocks:
        keys = jax.random.split(rng, blocks[0])
        return jnp.stack([_orthogonal_gates(key, (width, stacked), dtype) for key in keys])
    orthogonal = nn.initializers.orthogonal()
    keys = jax.random.split(rng, stacked // width)
    return jnp.concatenate([orthogonal(key, (width, width), dtype) for key in keys], axis=-1)


def lstm_step(state: tuple[Array, Array], x: Array, w: Array) -> tuple[tuple[Array, Array], Array]:
    """Return the next state (cell, hidden) and the output, given input projections x (b, 4 h)."""
    cell, hidden = state
    i, f, g, o = jnp.split(x + hidden @ w, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
    return (cell, hidden), hidden


class LSTM(RecurrentContext):
    """Long short-term memory with hidden states as contexts, and gates i, f, g, o as in torch."""

    width: int = 256
    num_layers: int = 1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def advance(
        self, z: Float[Array, "b t d"], state: tuple[tuple[Array, Array], ...] | None = None
    ) -> tuple[Float[Array, "b t h"], tuple[tuple[Array, Array], ...]]:
        """Return the contexts of z and the next state, which is (cell, hidden) per layer."""
        h, ends = z.astype(self.dtype), []
        for i in range(self.num_layers):
            x = Dense(4 * self.width, dtype=self.dtype, name=f"input{i}")(h)
            w = self.param(f"recurrent{i}", _orthogonal_gates, (self.width, 4 * self.width))
            zero = jnp.zeros((z.shape[0], self.width), self.dtype)
            start = (zero, zero) if state is None else state[i]
            step = functools.partial(lstm_step, w=w.astype(self.dtype))
            end, h = jax.lax.scan(step, start, x.swapaxes(0, 1))
            h = h.swapaxes(0, 1)
            ends.append(end)
        return h, tuple(ends)


class CausalConv(FeedForwardContext):
    """Residual causal convolutions, whose layer i reaches (kernel - 1) * 2^i latents further back.

    If not `dilated`, each layer reaches kernel - 1 further, as in wav2vec (Schneider et al. 2019).
    Unlike here, the norm of wav2vec is also over time, which leaks later latents into the contexts.
    """

    width: int = 256
    num_layers: int = 4
    kernel: int = 3
    dtype: DTypeLike = jnp.float32
    dilated: bool = True

    @property
    def reach(self) -> int:
        """Number of previous latents that a context depends on.

        >>> CausalConv(num_layers=2).reach, CausalConv(num_layers=9, dilated=False).reach
        (6, 18)
        """
        back = 2**self.num_layers - 1 if self.dilated else self.num_layers
        return (self.kernel - 1) * back

    @nn.compact
    def __call__(self, z: Float[Array, "b t d"]) -> Float[Array, "b t h"]:
        """Return the contexts of sequences, which are padded with zeros before the first latent."""
        h = Dense(self.width, dtype=self.dtype, name="input")(z)
        for i in range(self.num_layers):
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm{i}")(h)
            options = {"kernel_dilation": 2**i if self.dilated else 1, "dtype": self.dtype}
            conv = Conv(self.width, (self.kernel,), padding="CAUSAL", name=f"conv{i}", **options)
            h = h + nn.relu(conv(y))
        return h


class CausalTransformer(FeedForwardContext):
    """A pre-norm Transformer with causal attention over the last `span` latents.

    Positions are encoded as rotations of queries and keys (Su et al. 2021). Attention only depends
    on distances, so long recordings are treated like the training windows.
    """

    width: int = 256
    num_layers: int = 2
    num_heads: int = 8
    span: int = 128
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        super().__post_init__()
        if self.width % (2 * self.num_heads):
            raise UserError(f"width {self.width} is not a multiple of {2 * self.num_heads}")

    @property
    def reach(self) -> int:
        """Number of previous latents that a context depends on."""
        return self.num_layers * (self.span - 1)

    @nn.compact
    def __call__(self, z: Float[Array, "b t d"]) -> Float[Array, "b t h"]:
        """Return the contexts of sequences."""
        h = Dense(self.width, dtype=self.dtype, name="input")(z)
        for i in range(self.num_layers):
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm_attention{i}")(h)
            h = h + self._attend(y, i)
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm_hidden{i}")(h)
            y = nn.gelu(Dense(4 * self.width, dtype=self.dtype, name=f"hidden{i}")(y))
            h = h + Dense(self.width, dtype=self.dtype, name=f"output{i}")(y)
        return nn.LayerNorm(dtype=self.dtype, name="norm")(h)

    def _attend(self, y, i):
        b, t, width = y.shape
        heads = (b, t, self.num_heads, width // self.num_heads)
        project = Dense(3 * width, use_bias=False, dtype=self.dtype, name=f"attention{i}")
        q, k, v = (part.reshape(heads) for part in jnp.split(project(y), 3, axis=-1))
        y = _attend_back(_rotate(q), _rotate(k), v, self.span)
        return Dense(width, dtype=self.dtype, name=f"mix{i}")(y.reshape(b, t, width))


def _attend_back(q, k, v, span):
    """Attend to the last `span` latents, with memory linear in the length.

    The latents (b, t, heads, d) are split into blocks of `span` latents. Each block attends to
    itself and to the previous block.
    """
    b, t, *head = q.shape
    size = max(1, min(t, span))
    number = -(-t // size)
    padding = ((0, 0), (0, number * size - t), (0, 0), (0, 0))
    q, k, v = (jnp.pad(x, padding).reshape(b, number, size, *head) for x in (q, k, v))
    if number > 1:
        shift = ((0, 0), (1, 0), *[(0, 0)] * 3)
        k, v = (jnp.concatenate([jnp.pad(x, shift)[:, :-1], x], axis=2) for x in (k, v))
    start = size * jnp.arange(number)[:, None, None]
    at, key = start + jnp.arange(size)[:, None], start + jnp.arange(size - k.shape[2], size)
    visible = (key >= 0) & (key <= at) & (at - key < span)
    visible = jnp.tile(visible[:, None], (b, 1, 1, 1))
    q, k, v = (x.reshape(b * number, *x.shape[2:]) for x in (q, k, v))
    y = jax.nn.dot_product_attention(q, k, v, mask=visible)
    return y.reshape(b, number * size, *head)[:, :t]


def _rotate(x):
    """Rotate pairs of channels of (b, t, heads, d) by angles proportional to t."""
    t, half = x.shape[1], x.shape[-1] // 2
    rates = 10_000.0 ** (-jnp.arange(half) / half)
    angles = (jnp.arange(t)[:, None] * rates)[:, None]  # (t, 1, half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class MaskedRowConv(LayerStack):
    """Residual masked convolutions over rows, as in PixelCNN (Henaff et al. 2019, appendix).

    Each layer has 1x1, 1x3, 2x1 (its row and the row above) and 1x1 convolutions, so c_ij depends
    on `num_layers` rows above and as many columns to each side.
    """

    width: int = 256
    num_layers: int = 5
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, z: Float[Array, "b i j d"]) -> Float[Array, "b i j h"]:
        """Return the contexts of grids of latents, which are padded with zeros."""
        h = Dense(self.width, dtype=self.dtype, name="input")(z)
        for n in range(self.num_layers):
            # Unlike Henaff et al., layers start with a norm over the channels of each position.
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm{n}")(h)
            y = nn.relu(self._convolve(y, (1, 1), f"enter{n}"))
            y = self._convolve(y, (1, 3), f"across{n}")
            y = nn.relu(self._convolve(y, (2, 1), f"above{n}"))
            h = h + self._convolve(y, (1, 1), f"leave{n}")
        return nn.relu(h)

    def _convolve(self, y, kernel, name):
        """Convolve with zero padding above but not below, so that no row depends on the next."""
        rows, columns = kernel
        options = {"padding": ((rows - 1, 0), (columns // 2, columns // 2)), "dtype": self.dtype}
        options |= {"conv_general_dilated": convolve_images, "name": name}
        return Conv(self.width, kernel, **options)(y)


class RowGRU(LayerStack):
    """Gated recurrent units over rows, after the Row LSTM in PixelRNN (van den Oord et al. 2016).

        p = [h_{i-1,j-1}, h_{i-1,j}, h_{i-1,j+1}] W          x_i = 1x3 convolution of row i
        r, u = sigmoid(x + p)    n = tanh(x + r (p + b))     h_ij = n + u (h_{i-1,j} - n)

    Each step processes a whole row, and the initial state is zero. c_ij depends on a triangle with
    one column to each side in row i, and one more for each row above and each further layer.
    """

    width: int = 256
    num_layers: int = 1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, z: Float[Array, "b i j d"]) -> Float[Array, "b i j h"]:
        """Return the contexts of grids of latents, which are padded with zeros."""
        b, _, num_columns, _ = z.shape
        h, gates = z.astype(self.dtype), 3 * self.width
        for n in range(self.num_layers):
            x = Conv(gates, (1, 3), dtype=self.dtype, name=f"input{n}")(h)
            make = nn.initializers.lecun_normal()
            w = self.param(f"recurrent{n}", make, (gates, gates)).astype(self.dtype)
            bias = self.param(f"bias{n}", nn.initializers.zeros, (self.width,))

            def step(h, x, w=w, bias=bias):
                left = jnp.pad(h, ((0, 0), (1, 0), (0, 0)))[:, :-1]
                right = jnp.pad(h, ((0, 0), (0, 1), (0, 0)))[:, 1:]
                p = jnp.concatenate([left, h, right], -1) @ w
                _, u, new, _ = compute_gates(jnp.split(x, 3, axis=-1), p, bias)
                h = new + u * (h - new)
                return h, h

            start = jnp.zeros((b, num_columns, self.width), self.dtype)
            h = jax.lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)
        return h
