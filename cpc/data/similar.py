"""Recordings with the same sound in other samples: recoded, resampled, or at another loudness."""

import numpy as np
from jaxtyping import Float32, Int

from cpc.data.recordings import SAMPLE_RATE_HZ

#: Samples of two recordings that are compared at most.
SAMPLES_COMPARED = 60 * SAMPLE_RATE_HZ
#: Largest delay or padding by a codec, and least correlation of sound with the same sound coded: of
#: speech in 9 kbit/s (Opus) 0.91, of white noise as MP3 0.85; two other recordings have 0.06.
MAX_DELAY, MIN_CORRELATION = SAMPLE_RATE_HZ // 10, 0.8
#: Samples of a spectrum, and spectra that are in memory at a time.
FRAME, BLOCK_FRAMES = 512, 1 << 12
#: Frequencies up to those of a telephone, in the bins of a spectrum.
BAND_EDGES = np.array([4, 8, 13, 20, 30, 45, 70, 108])
#: Equal parts of a recording in time.
NUM_PARTS = 32
#: Least cosine of two signatures of the same sound. Among the 5,900 utterances of `voices`, four
#: pairs of copies have 0.993 or more, and all other pairs at most 0.953; utterances and their
#: versions in MP3, Vorbis, Opus, 8 bits or at 8 kHz have 0.994 or more.
MIN_COSINE = 0.98
#: Least change in time, as a fraction of the mean: a steady tone or noise has no signature.
MIN_CHANGE = 0.1
#: Tables of signs of random projections, and bits in each: one table is enough to compare two.
NUM_TABLES, NUM_BITS = 8, 16


def sign_sound(samples: Int[np.ndarray, " s"]) -> Float32[np.ndarray, " d"] | None:
    """Return the change of a recording's spectrum as a unit vector; None if it is short or steady.

    The bands are below 3.4 kHz, and neither loudness, polarity nor a constant offset counts.
    """
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    if len(frames) < NUM_PARTS:
        return None
    window, starts = np.hanning(FRAME).astype(np.float32), range(0, len(frames), BLOCK_FRAMES)
    blocks = (np.fft.rfft(frames[start : start + BLOCK_FRAMES] * window) for start in starts)
    powers = np.concatenate(
        [np.add.reduceat(abs(block) ** 2, BAND_EDGES, axis=1)[:, :-1] for block in blocks]
    )
    bounds = np.linspace(0, len(frames), NUM_PARTS + 1).astype(int)[:-1]
    parts = np.add.reduceat(powers, bounds, axis=0) ** 0.25
    change = parts - parts.mean(axis=0)
    size = np.linalg.norm(change)
    if size <= MIN_CHANGE * np.linalg.norm(parts):
        return None
    return (change / size).astype(np.float32).ravel()


def have_same_sound(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two recordings begin with the same sound, except for its coding."""
    size = min(len(a), len(b), SAMPLES_COMPARED)
    first, second = (one[:size].astype(float) for one in (a, b))
    return correlate(first, second, min(MAX_DELAY, size // 2)) > MIN_CORRELATION


def correlate(a: np.ndarray, b: np.ndarray, most: int) -> float:
    """Return the largest absolute correlation of two signals at delays of at most `most`.

    >>> a, b = np.random.default_rng(0).normal(size=(2, 1000))
    >>> round(correlate(a[20:], 3 + a[:-20], 50), 3), correlate(a, b, 50) < 0.2
    (1.0, True)
    """
    a, b = a - a.mean(), b - b.mean()
    lags, size = np.arange(-most, most + 1), 1 << (len(a) + most).bit_length()
    products = np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size).conj(), size)[lags]

    def energy(signal: np.ndarray, first: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(signal**2)])
        return total[first + len(signal) - abs(lags)] - total[first]

    energies = energy(a, np.maximum(lags, 0)) * energy(b, np.maximum(-lags, 0))
    return float(np.max(abs(products) / np.sqrt(np.maximum(energies, 1e-9))))


class Signatures:
    """Signatures by number, among which nearly equal ones are found without comparing all."""

    def __init__(self) -> None:
        dimension = NUM_PARTS * (len(BAND_EDGES) - 1)
        random = np.random.default_rng(0)
        self._directions = random.standard_normal((dimension, NUM_TABLES * NUM_BITS))
        self._tables: dict[tuple[int, bytes], list[int]] = {}
        self._vectors: list[np.ndarray] = []

    def add(self, vector: Float32[np.ndarray, " d"]) -> None:
        """Add a signature, with the next number."""
        for key in self._find_keys(vector):
            self._tables.setdefault(key, []).append(len(self._vectors))
        self._vectors.append(vector)

    def find(self, vector: Float32[np.ndarray, " d"]) -> list[int]:
        """Return the numbers of signatures that are nearly equal."""
        near = {i for key in self._find_keys(vector) for i in self._tables.get(key, ())}
        return sorted(i for i in near if vector @ self._vectors[i] > MIN_COSINE)

    def _find_keys(self, vector: Float32[np.ndarray, " d"]) -> list[tuple[int, bytes]]:
        bits = np.packbits(vector @ self._directions > 0).reshape(NUM_TABLES, -1)
        return [(table, key.tobytes()) for table, key in enumerate(bits)]
