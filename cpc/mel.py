"""Log-mel energies and mel-frequency cepstral coefficients (MFCC)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from cpc.types import Array, ArrayLike

#: About the power of 16-bit rounding noise. This floor keeps the log of digital silence finite.
POWER_FLOOR = 1e-10
# Parameters of `mfcc`.
NUM_COEFFICIENTS = 13
NUM_FILTERS = 40
PRE_EMPHASIS = 0.97


def log_mel(
    x: Float[ArrayLike, "b s"],
    window: Float[np.ndarray, " w"],
    hop: int,
    filters: Float[np.ndarray, "f bins"],
) -> Float[Array, "b t f"]:
    """Return the log mel-filter energies of windowed power spectra, in float32.

    Window t covers the samples from t * hop to t * hop + w. Only the (s - w) // hop + 1 complete
    windows are used. To get frames at the edges, pad x.

    Args:
      x: waveforms.
      window: weights of the w samples in a window, such as a Hamming window.
      hop: number of samples between the starts of adjacent windows.
      filters: mel filters from `mel_filters`. The FFT length, 2 (bins - 1), must be at least w.

    >>> filters = mel_filters(16000, 512, 40)
    >>> log_mel(np.zeros((2, 720), np.float32), np.hamming(400), 160, filters).shape
    (2, 3, 40)
    """
    x, weights = jnp.asarray(x, jnp.float32), window.astype(np.float32)
    fft_length = 2 * (filters.shape[1] - 1)
    num_frames = (x.shape[1] - len(window)) // hop + 1

    def frame_energies(start: Array) -> Array:  # (b, f)
        frames = jax.lax.dynamic_slice_in_dim(x, start, len(window), axis=1)
        spectrum = jnp.fft.rfft(frames * weights, fft_length)
        power = (jnp.square(spectrum.real) + jnp.square(spectrum.imag)) / fft_length
        return jnp.log(jnp.maximum(power @ filters.T, POWER_FLOOR))

    # Spectra are ten times as large as the waveforms. Chunks of them fit into the CPU cache.
    chunk_size = max(1, (256 if jax.default_backend() == "cpu" else 65_536) // len(x))
    by_time = jax.lax.map(frame_energies, hop * jnp.arange(num_frames), batch_size=chunk_size)
    return jnp.swapaxes(by_time, 0, 1)


def mel_filters(
    sample_rate_hz: int, fft_length: int, num_filters: int
) -> Float[np.ndarray, "f bins"]:
    """Return triangular mel filters of height 1 for the power spectrum of an FFT.

    The filters are evenly spaced between 0 Hz and half the sample rate on O'Shaughnessy's mel
    scale, 2595 log10(1 + f / 700).

    >>> mel_filters(16000, 512, 40).shape
    (40, 257)
    """
    top = 2595 * np.log10(1 + sample_rate_hz / 2 / 700)
    edges_hz = 700 * (10 ** (np.linspace(0, top, num_filters + 2) / 2595) - 1)
    bins_hz = np.arange(fft_length // 2 + 1) * sample_rate_hz / fft_length
    low, center, high = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising, falling = (bins_hz - low) / (center - low), (high - bins_hz) / (high - center)
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def cosine_basis(num_rows: int, length: int) -> Float[np.ndarray, "rows length"]:
    """Return the first rows of the orthonormal DCT-II matrix, whose frequencies are the lowest.

    >>> cosine_basis(2, 2).round(3)
    array([[ 0.707,  0.707],
           [ 0.707, -0.707]], dtype=float32)
    """
    rows = np.arange(num_rows)[:, None]
    basis = np.cos(np.pi * rows * (np.arange(length) + 0.5) / length) * np.sqrt(2 / length)
    return np.where(rows == 0, np.sqrt(1 / length), basis).astype(np.float32)


@functools.partial(jax.jit, static_argnames="sample_rate_hz")
def mfcc(x: Float[ArrayLike, "b s"], sample_rate_hz: int = 16000) -> Float[Array, "b t 39"]:
    """Return 13 mel-frequency cepstral coefficients and their differences every 10 ms.

    The coefficients are the orthonormal DCT-II of the log energies of 40 triangular mel filters
    (mel scale 2595 log10(1 + f / 700)) over the power spectra of 25 ms Hamming windows (Davis and
    Mermelstein, 1980). First and second differences are regression slopes over two frames on each
    side. At 16 kHz, there are s // 160 frames, and frame t is centered on samples 160 t to
    160 (t + 1).

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
    basis = cosine_basis(NUM_COEFFICIENTS, NUM_FILTERS)
    coefficients = log_mel(x, np.hamming(window), hop, filters) @ basis.T
    delta = differences(coefficients)
    return jnp.concatenate([coefficients, delta, differences(delta)], axis=-1)


def differences(x: Float[Array, "b t f"]) -> Float[Array, "b t f"]:
    """Return the slope of a line fitted to each frame and the two frames on each side.

    The slope at time t is sum_r r (x[t + r] - x[t - r]) / (2 sum_r r^2) for r = 1, 2. Beyond the
    edges, the first and last frames are repeated.
    """
    if x.shape[1] == 0:
        return x
    x = jnp.pad(x, ((0, 0), (2, 2), (0, 0)), mode="edge")
    return ((x[:, 3:-1] - x[:, 1:-3]) + 2 * (x[:, 4:] - x[:, :-4])) / 10
