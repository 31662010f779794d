"""Mel-frequency cepstral coefficients, the hand-made features that probes are compared with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from cpc.mel import log_mel, mel_filters
from cpc.types import Array, ArrayLike

NUM_COEFFICIENTS = 13
NUM_FILTERS = 40
PRE_EMPHASIS = 0.97
DELTA_REACH = 2


@functools.partial(jax.jit, static_argnames="sample_rate_hz")
def mfcc(x: Float[ArrayLike, "b s"], sample_rate_hz: int = 16000) -> Float[Array, "b t 39"]:
    """Return 13 cepstral coefficients with their first and second differences every 10 ms.

    log of 40 triangular mel filters over the power spectrum of 25 ms Hamming windows, then an
    orthonormal DCT-II (Davis and Mermelstein, 1980; mel scale 2595 log10(1 + f / 700));
    differences are regressions over two frames on each side.

    At 16 kHz these are s // 160 frames, and frame t is centred on samples 160 t to 160 (t + 1).

    >>> mfcc(np.zeros((2, 16000), np.float32)).shape
    (2, 100, 39)
    """
    hop = sample_rate_hz // 100
    window = hop * 5 // 2
    num_frames = x.shape[1] // hop
    fft_length = 2 ** (window - 1).bit_length()

    x = jnp.asarray(x, jnp.float32)[:, : num_frames * hop]
    x = x - PRE_EMPHASIS * jnp.pad(x, ((0, 0), (1, 0)))[:, :-1]
    margin = (window - hop) // 2
    x = jnp.pad(x, ((0, 0), (margin, window - hop - margin)))
    filters = mel_filters(sample_rate_hz, fft_length, NUM_FILTERS)
    rows = np.arange(NUM_COEFFICIENTS)[:, None]  # of the orthonormal DCT-II
    basis = np.cos(np.pi * rows * (np.arange(NUM_FILTERS) + 0.5) / NUM_FILTERS)
    basis *= np.where(rows == 0, np.sqrt(1 / NUM_FILTERS), np.sqrt(2 / NUM_FILTERS))
    coefficients = log_mel(x, np.hamming(window), hop, filters) @ basis.astype(np.float32).T
    delta = differences(coefficients)
    return jnp.concatenate([coefficients, delta, differences(delta)], axis=-1)


def differences(x: Float[Array, "b t f"]) -> Float[Array, "b t f"]:
    """Return the slope of a line fitted over two frames on each side, edges repeated.

    sum_r r (x[t + r] - x[t - r]) / (2 sum_r r^2).
    """
    num_frames = x.shape[1]
    if num_frames == 0:
        return x
    reach = range(1, DELTA_REACH + 1)
    padded = jnp.pad(x, ((0, 0), (DELTA_REACH, DELTA_REACH), (0, 0)), mode="edge")

    def shifted(by: int) -> Array:
        return padded[:, DELTA_REACH + by : DELTA_REACH + by + num_frames]

    slopes = jnp.stack([r * (shifted(r) - shifted(-r)) for r in reach])
    return slopes.sum(axis=0) / (2 * sum(r * r for r in reach))
