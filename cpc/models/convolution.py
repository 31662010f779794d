"""Strided convolution over time, computed with fewer or larger matrix products than in XLA.

On an accelerator, this only affects the first layer, whose input is narrow. It becomes one product
with a matrix that has a row per output: the inputs of this output, and a one for the bias. On an
H200, the paper encoder's forward pass and gradient then take 0.62 and 0.82 of the time.

On a CPU, this affects kernels that are two strides long, as in every layer of the paper's encoder.
The padded signal is then split into frames F_j that are one stride long, and

    out_j = F_j W_0 + F_{j+1} W_1.

Two neighbouring outputs depend on three frames (left, middle and right) and share a product:

    out_0 = (left - middle) W_0 + middle (W_0 + W_1)
    out_1 = (right - middle) W_1 + middle (W_0 + W_1)

This takes three products instead of four (Winograd 1980, F(2, 2)), as do both gradients. It is used
for training in float32 with at least `MIN_WIDTH` channels. A forward pass without gradients uses
XLA, which takes half the time at 128 channels; only its gradient for the input is slow.

Otherwise, both gradients are one product: dF = G [W_0, W_1]^T and [dW_0, dW_1] = F^T G, where
G_j = [g_j, g_{j-1}] are the gradients of all outputs that depend on frame j. If the input is
narrower than the output, as for a waveform, [F_j, F_{j+1}]^T g takes less memory.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

#: Minimum number of input channels for which training shares products. The paper's encoder with
#: gradients took 1, 0.97, 0.87 and 0.81 of the time at 64, 128, 256 and 512 channels.
MIN_WIDTH = 128
#: Columns of the matrix for narrow inputs, which hold the input of one output, a one, and zeros.
ROW_SIZE = 16


def convolve_signal(
    x: Float[Array, "b s c"],
    w: Float[Array, "w c d"],
    bias: Float[Array, " d"] | None,
    stride: int,
    padding: tuple[int, int],
) -> Float[Array, "b t d"]:
    """Cross-correlate signals over time into t = (s + sum(padding) - w) // stride + 1 frames."""

    def convolve(x, w, bias) -> Any:
        if w.shape[0] == 2 * stride:
            y: Any = _convolve_frames(x, w, padding)
        else:
            y = _convolve(x, w, stride, padding)
        return y if bias is None else (y + bias).astype(x.dtype)  # as in `cpc.models.layers`

    if bias is None or w.shape[0] * w.shape[1] >= ROW_SIZE:
        return convolve(x, w, bias)
    multiply = functools.partial(_multiply_rows, stride=stride, padding=padding)
    return jax.lax.platform_dependent(x, w, bias, cpu=convolve, default=multiply)


def _multiply_rows(x, w, bias, stride, padding):
    """Compute all outputs as one matrix product, [input of output j, 1, zeros] [w; bias; zeros]."""
    width, channels, d = w.shape
    num_out = (x.shape[1] + sum(padding) - width) // stride + 1
    x = jnp.pad(x, ((0, 0), padding, (0, 0)))
    inputs = [x[:, i : i + (num_out - 1) * stride + 1 : stride] for i in range(width)]
    num_zeros = ROW_SIZE - width * channels - 1
    rows = jnp.concatenate([*inputs, jnp.ones_like(inputs[0][..., :1])], -1)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, num_zeros)))
    factors = [w.reshape(-1, d), bias[None].astype(w.dtype), jnp.zeros((num_zeros, d), w.dtype)]
    return rows @ jnp.concatenate(factors)


def _convolve(x, w, stride, padding):
    layout = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(x, w, (stride,), [padding], dimension_numbers=layout)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve_frames(x, w, padding):
    return _convolve(x, w, w.shape[0] // 2, padding)


def _forward(x, w, padding):
    plain = functools.partial(_convolve_frames, padding=padding)
    if not _shares_products(x):
        return plain(x, w), (x, w)
    pairs = functools.partial(_convolve_pairs, padding=padding)
    return jax.lax.platform_dependent(x, w, cpu=pairs, default=plain), (x, w)


def _backward(padding, residuals, g):
    x, w = residuals

    def plain(x, w, g):
        return jax.vjp(lambda x, w: _convolve(x, w, w.shape[0] // 2, padding), x, w)[1](g)

    gradients = _pair_gradients if _shares_products(x) else _frame_gradients
    faster = functools.partial(gradients, padding=padding)
    return jax.lax.platform_dependent(x, w, g, cpu=faster, default=plain)


_convolve_frames.defvjp(_forward, _backward)


def _shares_products(x):
    return x.dtype == jnp.float32 and x.shape[-1] >= MIN_WIDTH


def _convolve_pairs(x, w, padding):
    num_out = (x.shape[1] + sum(padding) - w.shape[0]) // (w.shape[0] // 2) + 1
    past, middle, future = _cut_pairs(x, w, padding, num_out)
    w0, w1 = w.reshape(2, -1, w.shape[-1])
    shared = middle @ (w0 + w1)
    pairs = jnp.stack([past @ w0 + shared, future @ w1 + shared], 2)
    return pairs.reshape(x.shape[0], -1, w.shape[-1])[:, :num_out]


def _pair_gradients(x, w, g, padding):
    past, middle, future = _cut_pairs(x, w, padding, g.shape[1])
    w0, w1 = w.reshape(2, -1, w.shape[-1])
    g = jnp.pad(g, ((0, 0), (0, g.shape[1] % 2), (0, 0)))
    g0, g1 = jnp.moveaxis(g.reshape(g.shape[0], -1, 2, g.shape[-1]), 2, 0)
    both = g0 + g1

    dleft, dright = g0 @ w0.T, g1 @ w1.T
    dmiddle = both @ (w0 + w1).T - dleft - dright
    dright += jnp.pad(dleft[:, 1:], ((0, 0), (0, 1), (0, 0)))  # the left frame of the next pair
    dx = _join_pairs(x, dleft[:, 0], jnp.stack([dmiddle, dright], 2), padding, w.shape[0] // 2)

    def multiply(frames, g):
        # g^T F is used instead of F^T g, because a large transposed left factor is slow.
        return g.reshape(-1, g.shape[-1]).T @ frames.reshape(-1, frames.shape[-1])

    shared = multiply(middle, both)
    dw = jnp.stack([multiply(past, g0) + shared, multiply(future, g1) + shared])
    # Without the barrier, XLA would fold the transposition into the products.
    dw = jnp.swapaxes(jax.lax.optimization_barrier(dw), 1, 2)
    return dx, dw.reshape(w.shape)


def _cut_pairs(x, w, padding, num_out):
    """Return left - middle, middle and right - middle for output pairs, as (b, pairs, stride c)."""
    stride, pairs = w.shape[0] // 2, -(-num_out // 2)
    needed = 2 * pairs * stride
    if padding[0] == stride:  # with causal padding, the first frame is zeros, and x is not copied
        first = jnp.zeros((x.shape[0], 1, stride * x.shape[2]), x.dtype)
    else:
        x = jnp.pad(x, ((0, 0), (padding[0], stride), (0, 0)))
        first, x = x[:, :stride].reshape(x.shape[0], 1, -1), x[:, stride:]
    x = jnp.pad(x, ((0, 0), (0, max(0, needed - x.shape[1])), (0, 0)))[:, :needed]
    x = x.reshape(x.shape[0], pairs, 2, -1)
    middle, right = x[:, :, 0], x[:, :, 1]
    left = jnp.concatenate([first, right[:, :-1]], 1)
    return left - middle, middle, right - middle


def _join_pairs(x, dfirst, dpairs, padding, stride):
    """Join the gradients of the first frame and of the two further frames of each pair."""
    b, s, c = x.shape
    dx = dpairs.reshape(b, -1, c)
    if padding[0] != stride:
        dx = jnp.concatenate([dfirst.reshape(b, stride, c), dx], 1)[:, padding[0] :]
    return jnp.pad(dx, ((0, 0), (0, max(0, s - dx.shape[1])), (0, 0)))[:, :s]


def _frame_gradients(x, w, g, padding):
    (b, s, c), (width, _, d) = x.shape, w.shape
    stride, num_out = width // 2, g.shape[1]
    # Causal padding is one frame of zeros, which is skipped so that x is not copied.
    skip = 1 if padding[0] == stride else 0
    start = 0 if skip else padding[0]
    needed = (num_out + 1 - skip) * stride
    end = max(0, needed - start - s)
    frames = jnp.pad(x, ((0, 0), (start, end), (0, 0)))[:, :needed].reshape(-1, stride * c)

    pairs = [jnp.pad(g, ((0, 0), side, (0, 0)))[:, skip:] for side in ((0, 1), (1, 0))]
    pairs = jnp.concatenate(pairs, axis=-1).reshape(-1, 2 * d)  # G_j = [g_j, g_{j-1}]

    halves = w.reshape(2, stride * c, d)
    dframes = pairs @ jnp.concatenate([halves[0], halves[1]], axis=-1).T
    dx = dframes.reshape(b, needed, c)[:, start : start + s]
    dx = jnp.pad(dx, ((0, 0), (0, s - dx.shape[1]), (0, 0)))
    if stride * c < d:
        x = jnp.pad(x, ((0, 0), padding, (0, 0)))
        inputs = [x[:, i : i + (num_out - 1) * stride + 1 : stride] for i in range(width)]
        inputs = jnp.stack(inputs, 2).reshape(-1, width * c)
        return dx, (inputs.T @ g.reshape(-1, d)).reshape(width, c, -1)
    dw = frames.T @ pairs
    return dx, jnp.stack([dw[:, :d], dw[:, d:]]).reshape(w.shape)
