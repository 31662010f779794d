import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

from cpc.evaluate import mfcc
from cpc.evaluate.embeddings import bucket_lengths, embed_pieces, embed_utterances


def causal_embed(x):
    """Return frame means and their running sum, which is causal."""
    frames = jnp.asarray(x).reshape(x.shape[0], -1, 160).mean(axis=2)
    return jnp.stack([frames, jnp.cumsum(frames, axis=1)], axis=2)


def waveforms_of(lengths):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(length).astype(np.float32) for length in lengths]


@pytest.mark.parametrize("batch_frames", [1, 62_500])
def test_batches_equal_single_utterances(batch_frames):
    waveforms = waveforms_of([1600, 170, 32_000, 159, 4805, 0, 1600, 12_345])
    found = embed_utterances(causal_embed, iter(waveforms), 160, batch_frames)
    for waveform, features in zip(waveforms, found, strict=True):
        num_frames = max(1, len(waveform) // 160)
        assert features.shape == (num_frames, 2)
        assert features.dtype == np.float32
        if len(waveform) >= 160:
            frames = waveform[: num_frames * 160].reshape(-1, 160).mean(axis=1)
            alone = np.stack([frames, np.cumsum(frames)], axis=1)
            np.testing.assert_allclose(features, alone, atol=1e-5)
    assert embed_utterances(causal_embed, [], 160) == []


@pytest.mark.parametrize(("backend", "shapes"), [("cpu", {100, 1000}), ("gpu", {1000})])
def test_accelerators_pad_instead_of_compiling(backend, shapes, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    found = set()

    def embed(x):
        found.add(x.shape[1])
        return x[..., None]

    waveforms = waveforms_of([100] * 20 + [1000])
    features = embed_utterances(embed, waveforms, 1, shape_frames=10)
    assert found == shapes
    jax.tree.map(np.testing.assert_array_equal, [x[:, 0] for x in features], waveforms)


@pytest.mark.parametrize("shape_frames", [0, 50, 150, 10_000])
def test_buckets_are_optimal(shape_frames):
    """Compare with all sets of lengths, each with its price."""
    lengths = np.random.default_rng(2).integers(1, 400, 11)

    def price(bounds):
        return np.sum(bounds[np.searchsorted(bounds, lengths)]) + shape_frames * len(bounds)

    *inner, longest = np.unique(lengths)
    every = itertools.chain.from_iterable(
        itertools.combinations(inner, number) for number in range(len(inner) + 1)
    )
    found = bucket_lengths(lengths, shape_frames)
    assert price(found) == min(price(np.array([*some, longest])) for some in every)
    assert len(found) == {0: len(inner) + 1, 10_000: 1}.get(shape_frames, len(found))
    assert len(bucket_lengths(np.arange(1, 100), 0)) == 16


def test_budgets_count_frames_at_any_rate():
    lengths = np.random.default_rng(4).integers(50, 2_000, 200)
    seen = {}
    for stride in (1, 4, 160):
        sizes = []

        def embed(x, stride=stride, sizes=sizes):
            sizes.append((len(x), x.shape[1] // stride))
            return np.zeros((len(x), x.shape[1] // stride, 1), np.float32)

        embed_utterances(embed, [np.zeros(n * stride, np.float32) for n in lengths], stride)
        seen[stride] = sorted(sizes)  # two threads, in any order
    assert seen[1] == seen[4] == seen[160]
    sizes = [rows * frames for rows, frames in seen[4]]
    assert max(sizes) <= 25_000
    assert sum(sizes) < 1.35 * lengths.sum()


def test_several_channels_and_other_strides():
    lengths, rng = [64, 7, 100, 30], np.random.default_rng(3)
    signals = [rng.standard_normal((length, 3)).astype(np.float32) for length in lengths]
    seen = []

    def embed(x):
        seen.append(np.asarray(x))
        return np.asarray(x).reshape(len(x), -1, 8, 3).sum(2)

    found = embed_utterances(embed, signals, 8)
    assert found[1].shape == (1, 3)
    np.testing.assert_allclose(found[3], embed(signals[3][None, :24])[0], atol=1e-5)
    seen.clear()
    embed_utterances(embed, [np.arange(300, dtype=np.float32).reshape(100, 3)], 8)
    # Signals are continued by their mirror image.
    expected = [*range(0, 300, 3), *range(297, 0, -3)]
    np.testing.assert_array_equal(seen[0][0, :, 0], expected[: seen[0].shape[1]])


@pytest.mark.parametrize("length", [40 * 160, 47 * 160 + 30])
def test_pieces_equal_the_whole(length, monkeypatch):
    monkeypatch.setattr("cpc.evaluate.embeddings.PIECE_FRAMES", 20)
    short, long = waveforms_of([1600, length])
    options = {"before": 6, "ahead": 5}
    whole = embed_utterances(mfcc, [short, long], 160, ahead=5)
    (only,) = embed_utterances(mfcc, [short], 160, ahead=5)  # in a shorter batch
    np.testing.assert_allclose(only, whole[0], atol=2e-4)
    alone = []

    def embed_long(waveform):
        alone.append(len(waveform))
        return embed_pieces(mfcc, waveform, 160, **options)

    found = embed_utterances(mfcc, [short, long], 160, 30, ahead=5, embed_long=embed_long)
    assert alone == [length]
    for one, other in zip(found, whole, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=2e-4)
    (only,) = embed_utterances(mfcc, [long], 160, 30, ahead=5, embed_long=embed_long)
    np.testing.assert_array_equal(only, found[1])


def naive_mfcc(x):
    """Return textbook MFCC of one 16 kHz waveform, frame by frame in float64."""
    num_frames = len(x) // 160
    x = np.float64(x[: num_frames * 160])
    emphasised = np.array([x[i] - 0.97 * (x[i - 1] if i else 0) for i in range(len(x))])
    mel_top = 2595 * np.log10(1 + 8000 / 700)
    edges = [700 * (10 ** (mel_top * i / 41 / 2595) - 1) for i in range(42)]
    hz, rows = np.arange(257) * 16000 / 512, []
    for t in range(num_frames):
        frame = np.pad(emphasised, 120 + 160)[160 * t + 160 :][:400]  # centered
        power = np.abs(np.fft.rfft(frame * np.hamming(400), 512)) ** 2 / 512
        energies = [np.interp(hz, edges[f : f + 3], [0, 1, 0]) @ power for f in range(40)]
        log_energies = np.log(np.maximum(energies, 1e-10))
        rows.append(scipy.fft.dct(log_energies, type=2, norm="ortho")[:13])

    def slope(rows):
        at = np.pad(rows, ((2, 2), (0, 0)), "edge")
        return (at[3:-1] - at[1:-3] + 2 * (at[4:] - at[:-4])) / 10

    return np.concatenate([rows, slope(rows), slope(slope(rows))], axis=1)


def test_mfcc_equal_the_textbook():
    x = np.float32(0.1 * np.random.default_rng(0).standard_normal((2, 2000)))
    found = np.asarray(mfcc(x))
    assert (found.shape, found.dtype) == ((2, 12, 39), np.float32)
    np.testing.assert_allclose(found, [naive_mfcc(row) for row in x], atol=2e-3, rtol=1e-4)


def test_mfcc_at_the_edges():
    assert np.isfinite(np.asarray(mfcc(np.zeros((1, 1600), np.float32)))).all()
    assert mfcc(jnp.zeros((1, 1600), jnp.bfloat16)).dtype == jnp.float32
    for num_samples in (0, 159, 160, 401):
        shape = jax.eval_shape(mfcc, jnp.zeros((1, num_samples))).shape
        assert shape == (1, num_samples // 160, 39)
    slow = jax.eval_shape(lambda x: mfcc(x, sample_rate_hz=8000), jnp.zeros((1, 8000)))
    assert slow.shape == (1, 100, 39)  # one frame every 10 ms
