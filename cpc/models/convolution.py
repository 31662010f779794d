"""Strided convolution over time, with the gradient that a matrix product gives.

When the kernel is two strides long, as in every layer of the paper's encoder, the padded signal is
a row of frames F_j of one stride each, and

    out_j = F_j W_0 + F_{j+1} W_1.

With G_j = [g_j, g_{j-1}], the gradients of all outputs that frame j enters, both gradients are one
product: dF = G [W_0, W_1]^T and [dW_0, dW_1] = F^T G. XLA's own gradient to the input of a strided
convolution is its slow part on a CPU; the forward pass stays XLA's.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def convolve(
    x: Float[Array, "b s c"], w: Float[Array, "w c d"], stride: int, padding: tuple[int, int]
) -> Float[Array, "b t d"]:
    """Cross-correlation over time: t = (s + sum(padding) - w) // stride + 1 frames out."""
    if w.shape[0] == 2 * stride:
        return _convolve_frames(x, w, padding)
    return _convolve(x, w, stride, padding)


def _convolve(x, w, stride, padding):
    return jax.lax.conv_general_dilated(
        x, w, (stride,), [padding], dimension_numbers=("NWC", "WIO", "NWC")
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve_frames(x, w, padding):
    return _convolve(x, w, w.shape[0] // 2, padding)


def _forward(x, w, padding):
    return _convolve_frames(x, w, padding), (x, w)


def _backward(padding, residuals, g):
    x, w = residuals
    (b, s, c), (width, _, d) = x.shape, w.shape
    stride, num_out = width // 2, g.shape[1]
    # Causal padding is one frame of zeros: leaving it out aligns the frames with x, without a copy.
    skip = 1 if padding[0] == stride else 0
    start = 0 if skip else padding[0]
    needed = (num_out + 1 - skip) * stride
    end = max(0, needed - start - s)
    frames = jnp.pad(x, ((0, 0), (start, end), (0, 0)))[:, :needed].reshape(-1, stride * c)

    pairs = [jnp.pad(g, ((0, 0), side, (0, 0)))[:, skip:] for side in ((0, 1), (1, 0))]
    pairs = jnp.concatenate(pairs, axis=-1).reshape(-1, 2 * d)  # G_j = [g_j, g_{j-1}]

    halves = w.reshape(2, stride * c, d)
    dframes = pairs @ jnp.concatenate([halves[0], halves[1]], axis=-1).T
    dw = frames.T @ pairs
    dw = jnp.stack([dw[:, :d], dw[:, d:]]).reshape(w.shape)
    dx = dframes.reshape(b, needed, c)[:, start : start + s]
    return jnp.pad(dx, ((0, 0), (0, s - dx.shape[1]), (0, 0))), dw


_convolve_frames.defvjp(_forward, _backward)
