"""Context networks g_ar: latents to contexts, each causal, on inputs of any size.

Of sequences (b, t, d), c_t sees z_1 .. z_t and nothing later. They may come in pieces:
`advance(z, state)` gives the contexts of the latents z that follow those which left `state` behind
(None: they are the first), and the state that z leaves. Of images (b, i, j, d), c_ij sees rows
1 .. i of the grid and nothing below; of these rows it sees all columns that the network reaches.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from cpc.models.image_encoders import convolve_images
from cpc.models.layers import Conv, Dense, LayerStack
from cpc.types import UserError


def steps_at_once() -> int:
    """Return how many steps the loops do in one turn.

    An accelerator then writes what they keep with one kernel for all of them, and starts half as
    many in all; a CPU, which starts none, is slower for it.
    """
    return 1 if jax.default_backend() == "cpu" else 8


@jax.custom_vjp
def gru_scan(
    x: Float[Array, "t *blocks b gates"],
    w: Float[Array, "*blocks h gates"],
    bias: Float[Array, "*blocks h"],
    start: Float[Array, "*blocks b h"],
) -> Float[Array, "t *blocks b h"]:
    """Return the states of a GRU after each step, time first; gates = 3 h, stacked r, u, n.

        r = sigmoid(x_r + h W_r)    u = sigmoid(x_u + h W_u)    n = tanh(x_n + r (h W_n + b_n))
        h' = n + u (h - n)

    (Cho et al. 2014, with the reset gate after the recurrent product, as in cuDNN and torch.) The
    input projections x are made for all steps at once outside. The backward scan computes only what
    depends on the step after; the gradient of W is one product. An axis of blocks makes W block
    diagonal: each part of the state has gates of its own, which read that part alone.
    """
    return _gru_forward(x, w, bias, start)[0]


def _gru_forward(x, w, bias, start):
    # An accelerator makes the gates again for the gradient, of all steps at once: a product more,
    # and nothing to write in each step but the state. On an H200 that takes 0.9 of the time; on a
    # CPU the product is what takes the time.
    again = jax.default_backend() != "cpu"

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


def _gru_backward(residuals, g):
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


gru_scan.defvjp(_gru_forward, _gru_backward)


class RecurrentContext(LayerStack):
    """A context whose `advance` keeps all that it has seen in its state."""

    #: Number of latents before its own that a context depends on: None for all.
    reach = None

    def __call__(self, z: Float[Array, "b t d"]) -> Float[Array, "b t h"]:
        """Return the contexts, from zero states."""
        return self.advance(z)[0]


class FeedForwardContext(LayerStack):
    """A context that depends on its own latent and the `reach` before it."""

    def advance(
        self, z: Float[Array, "b t d"], state: Float[Array, "b r d"] | None = None
    ) -> tuple[Float[Array, "b t h"], Float[Array, "b r2 d"]]:
        """Return contexts of latents that follow those in `state`, and the next state."""
        whole = z if state is None else jnp.concatenate([state, z], axis=1)
        contexts = self(whole)[:, whole.shape[1] - z.shape[1] :]
        return contexts, whole[:, max(0, whole.shape[1] - self.reach) :]


class GRU(RecurrentContext):
    """Gated recurrent units (the paper's context: one layer of 256), from a zero state.

    With `blocks` the recurrent weights are block diagonal, as in DreamerV3 (Hafner et al. 2023).
    """

    width: int = 256
    num_layers: int = 1
    dtype: DTypeLike = jnp.float32
    blocks: int = 1

    def __post_init__(self):
        """Reject widths that do not split into blocks."""
        super().__post_init__()
        if self.width % self.blocks:
            raise UserError(
                f"a GRU of {self.blocks} blocks needs a width that is a multiple of them, not "
                f"{self.width}: change model.context_width or model.context_blocks"
            )

    @nn.compact
    def advance(
        self, z: Float[Array, "b t d"], state: tuple[Array, ...] | None = None
    ) -> tuple[Float[Array, "b t h"], tuple[Array, ...]]:
        """Return contexts that go on from `state`, (b, h) of each layer, and the next state."""
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
    """Draw an orthogonal matrix for each gate, side by side; for each block, if there are some."""
    *blocks, width, stacked = shape
    if blocks:
        keys = jax.random.split(rng, blocks[0])
        return jnp.stack([_orthogonal_gates(key, (width, stacked), dtype) for key in keys])
    make = nn.initializers.orthogonal()
    keys = jax.random.split(rng, stacked // width)
    return jnp.concatenate([make(key, (width, width), dtype) for key in keys], axis=-1)


class LSTM(RecurrentContext):
    """Long short-term memory; gates stacked i, f, g, o as in torch; c_t is the hidden state."""

    width: int = 256
    num_layers: int = 1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def advance(
        self, z: Float[Array, "b t d"], state: tuple[tuple[Array, Array], ...] | None = None
    ) -> tuple[Float[Array, "b t h"], tuple[tuple[Array, Array], ...]]:
        """Return contexts that go on from `state`, each layer's cell and output, and the next."""
        h, ends = z.astype(self.dtype), []
        for i in range(self.num_layers):
            x = Dense(4 * self.width, dtype=self.dtype, name=f"input{i}")(h)
            w = self.param(f"recurrent{i}", _orthogonal_gates, (self.width, 4 * self.width))
            w = w.astype(self.dtype)
            zero = jnp.zeros((z.shape[0], self.width), self.dtype)

            def step(state, x, w=w):
                cell, hidden = state
                i, f, g, o = jnp.split(x + hidden @ w, 4, axis=-1)
                cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
                hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
                return (cell, hidden), hidden

            start = (zero, zero) if state is None else state[i]
            end, h = jax.lax.scan(step, start, x.swapaxes(0, 1))
            h = h.swapaxes(0, 1)
            ends.append(end)
        return h, tuple(ends)


class CausalConv(FeedForwardContext):
    """Residual causal convolutions: layer i looks back (kernel - 1) * 2^i latents more.

    Not `dilated`, each looks back kernel - 1 more, as those of wav2vec (Schneider et al. 2019). The
    norm is of a latent's channels; that of wav2vec goes over time, and tells contexts what follows.
    """

    width: int = 256
    num_layers: int = 4
    kernel: int = 3
    dtype: DTypeLike = jnp.float32
    dilated: bool = True

    @property
    def reach(self) -> int:
        """Number of latents before its own that a context depends on.

        >>> CausalConv(num_layers=2).reach, CausalConv(num_layers=9, dilated=False).reach
        (6, 18)
        """
        back = 2**self.num_layers - 1 if self.dilated else self.num_layers
        return (self.kernel - 1) * back

    @nn.compact
    def __call__(self, z: Float[Array, "b t d"]) -> Float[Array, "b t h"]:
        """Return the contexts; z_{-1}, z_{-2}, ... count as zero."""
        h = Dense(self.width, dtype=self.dtype, name="input")(z)
        for i in range(self.num_layers):
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm{i}")(h)
            y = Conv(
                self.width,
                (self.kernel,),
                kernel_dilation=2**i if self.dilated else 1,
                padding="CAUSAL",
                dtype=self.dtype,
                name=f"conv{i}",
            )(y)
            h = h + nn.relu(y)
        return h


class CausalTransformer(FeedForwardContext):
    """Pre-norm Transformer whose attention reaches `span` latents back and none ahead.

    Positions enter as rotations of queries and keys (Su et al. 2021), so only distances count, and
    a long recording is treated as the training windows were.
    """

    width: int = 256
    num_layers: int = 2
    num_heads: int = 8
    span: int = 128
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        """Reject widths that do not split into heads of pairs."""
        super().__post_init__()
        if self.width % (2 * self.num_heads):
            raise UserError(
                f"a Transformer of {self.num_heads} heads needs a width that is a multiple of "
                f"{2 * self.num_heads}, not {self.width}: change model.context_width"
            )

    @property
    def reach(self) -> int:
        """Number of latents before its own that a context depends on."""
        return self.num_layers * (self.span - 1)

    @nn.compact
    def __call__(self, z: Float[Array, "b t d"]) -> Float[Array, "b t h"]:
        """Return the contexts."""
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
    """Attend to a latent's own and the `span - 1` before it, in memory linear in the length.

    The latents (b, t, heads, d) come in blocks of `span`, which see into their own and the last.
    """
    b, t, *head = q.shape
    size = max(1, min(t, span))
    number = -(-t // size)
    filled = ((0, 0), (0, number * size - t), (0, 0), (0, 0))
    q, k, v = (jnp.pad(x, filled).reshape(b, number, size, *head) for x in (q, k, v))
    if number > 1:
        before = ((0, 0), (1, 0), *[(0, 0)] * 3)
        k, v = (jnp.concatenate([jnp.pad(x, before)[:, :-1], x], axis=2) for x in (k, v))
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
    """Residual masked convolutions over rows, as PixelCNN's (Henaff et al. 2019, appendix).

    A layer adds 1x1, 1x3, 2x1 (its row and the one above), 1x1 convolutions: c_ij reaches
    `num_layers` rows up and as many columns to each side.
    """

    width: int = 256
    num_layers: int = 5
    dtype: DTypeLike = jnp.float32

    @property
    def reach(self) -> int:
        """Number of rows above its own that a context depends on."""
        return self.num_layers

    @nn.compact
    def __call__(self, z: Float[Array, "b i j d"]) -> Float[Array, "b i j h"]:
        """Return the contexts; beyond the grid's edges are zeros."""
        h = Dense(self.width, dtype=self.dtype, name="input")(z)
        for n in range(self.num_layers):
            # Differs from Henaff et al.: a norm over the channels of each place comes first.
            y = nn.LayerNorm(dtype=self.dtype, name=f"norm{n}")(h)
            y = nn.relu(self._convolve(y, (1, 1), f"enter{n}"))
            y = self._convolve(y, (1, 3), f"across{n}")
            y = nn.relu(self._convolve(y, (2, 1), f"above{n}"))
            h = h + self._convolve(y, (1, 1), f"leave{n}")
        return nn.relu(h)

    def _convolve(self, y, kernel, name):
        """Convolve with zeros above alone, so that no row sees the one below, and on both sides."""
        rows, columns = kernel
        padding = ((rows - 1, 0), (columns // 2, columns // 2))
        return Conv(
            self.width,
            kernel,
            padding=padding,
            dtype=self.dtype,
            conv_general_dilated=convolve_images,
            name=name,
        )(y)


class RowGRU(LayerStack):
    """Gated recurrent units from row to row (after the Row LSTM of PixelRNN, van den Oord 2016).

        p = [h_{i-1,j-1}, h_{i-1,j}, h_{i-1,j+1}] W          x_i = 1x3 convolution of row i
        r, u = sigmoid(x + p)    n = tanh(x + r (p + b))     h_ij = n + u (h_{i-1,j} - n)

    A whole row takes one step, from a zero state. c_ij sees the triangle above it: in row i one
    column to each side, one more with every row up and every further layer.
    """

    width: int = 256
    num_layers: int = 1
    dtype: DTypeLike = jnp.float32

    #: Number of rows above its own that a context depends on: None for all.
    reach = None

    @nn.compact
    def __call__(self, z: Float[Array, "b i j d"]) -> Float[Array, "b i j h"]:
        """Return the contexts; beyond the grid's edges are zeros."""
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
                p_r, p_u, p_n = jnp.split(jnp.concatenate([left, h, right], -1) @ w, 3, axis=-1)
                x_r, x_u, x_n = jnp.split(x, 3, axis=-1)
                p_n = (p_n + bias).astype(p_n.dtype)  # as in `cpc.models.layers`
                new = jnp.tanh(x_n + jax.nn.sigmoid(x_r + p_r) * p_n)
                h = new + jax.nn.sigmoid(x_u + p_u) * (h - new)
                return h, h

            start = jnp.zeros((b, num_columns, self.width), self.dtype)
            h = jax.lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)
        return h
