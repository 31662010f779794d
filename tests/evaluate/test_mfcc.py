import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft

from cpc.evaluate import mfcc


def naive_mfcc(x):
    """One frame at a time in float64, by the textbook, on one 16 kHz waveform."""
    num_frames = len(x) // 160
    x = x[: num_frames * 160].astype(np.float64)
    emphasised = np.array([x[i] - 0.97 * (x[i - 1] if i else 0) for i in range(len(x))])
    mel_top = 2595 * np.log10(1 + 8000 / 700)
    edges = [700 * (10 ** (mel_top * i / 41 / 2595) - 1) for i in range(42)]
    rows = []
    for t in range(num_frames):
        frame = np.zeros(400)
        for i in range(400):
            source = 160 * t + 80 - 200 + i
            if 0 <= source < len(x):
                frame[i] = emphasised[source]
        power = np.abs(np.fft.rfft(frame * np.hamming(400), 512)) ** 2 / 512
        energies = np.zeros(40)
        for f in range(40):
            for b in range(257):
                hz = b * 16000 / 512
                if edges[f] < hz <= edges[f + 1]:
                    energies[f] += power[b] * (hz - edges[f]) / (edges[f + 1] - edges[f])
                elif edges[f + 1] < hz < edges[f + 2]:
                    energies[f] += power[b] * (edges[f + 2] - hz) / (edges[f + 2] - edges[f + 1])
        log_energies = np.log(np.maximum(energies, 1e-10))
        rows.append(scipy.fft.dct(log_energies, type=2, norm="ortho")[:13])
    static = np.array(rows)

    def slope(values):
        at = lambda t: values[min(max(t, 0), len(values) - 1)]  # noqa: E731
        return np.array(
            [(at(t + 1) - at(t - 1) + 2 * (at(t + 2) - at(t - 2))) / 10 for t in range(len(values))]
        )

    return np.concatenate([static, slope(static), slope(slope(static))], axis=1)


def test_equals_the_textbook():
    rng = np.random.default_rng(0)
    x = (0.1 * rng.standard_normal((2, 2000))).astype(np.float32)
    found = np.asarray(mfcc(x))
    assert found.shape == (2, 12, 39)
    assert found.dtype == np.float32
    for row in range(2):
        np.testing.assert_allclose(found[row], naive_mfcc(x[row]), atol=2e-3, rtol=1e-4)


def test_edges():
    assert np.isfinite(np.asarray(mfcc(np.zeros((1, 1600), np.float32)))).all()
    assert mfcc(jnp.zeros((1, 1600), jnp.bfloat16)).dtype == jnp.float32
    for num_samples in (0, 159, 160, 401):
        shape = jax.eval_shape(mfcc, jnp.zeros((1, num_samples))).shape
        assert shape == (1, num_samples // 160, 39)
    slow = jax.eval_shape(lambda x: mfcc(x, sample_rate_hz=8000), jnp.zeros((1, 8000)))
    assert slow.shape == (1, 100, 39)  # a frame each 10 ms
