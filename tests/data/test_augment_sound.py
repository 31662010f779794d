"""Tests of each augmentation effect on waveforms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.data import augment_sound as sound
from cpc.types import UserError

RATE = sound.SAMPLE_RATE_HZ
SIZE = 8192
RANGES = sound.Ranges()
augment = jax.jit(sound.augment_sound, static_argnames=("effects", "ranges"))
shift = jax.jit(sound.shift_pitch)
shift_each = jax.jit(jax.vmap(sound.shift_pitch))


def sine(hz, size=SIZE):
    return np.float32(0.1 * np.sin(2 * np.pi * hz * np.arange(size) / RATE))


def windows(b=4, size=SIZE, seed=0):
    """Noise of a slow envelope, each row of another loudness."""
    rng = np.random.default_rng(seed)
    envelope = 1 + np.sin(np.arange(size) / 900 + rng.uniform(0, 6, (b, 1)))
    return jnp.float32(rng.normal(size=(b, size)) * envelope * 0.02 * np.arange(1, b + 1)[:, None])


def peak_hz(x):
    spectrum = np.abs(np.fft.rfft(x * np.hanning(len(x)), 2**19))
    return spectrum.argmax() * RATE / 2**19


def test_pitch_moves_by_the_cents_asked_and_length_and_tempo_stay():
    given = [(hz, cents) for hz in (220, 1000, 3100) for cents in (-300, 0, 75, 1200)]
    tones = np.stack([sine(hz) for hz, _ in given])
    tones[:, : SIZE // 2] = 0  # the onset does not move
    moved = np.asarray(shift_each(tones, jnp.float32([cents for _, cents in given])))
    assert moved.shape == tones.shape
    later = slice(SIZE // 2 + sound.FRAME, -sound.FRAME)
    for (hz, cents), x, y in zip(given, tones, moved, strict=True):
        assert 1200 * np.log2(peak_hz(y[later]) / hz) == pytest.approx(cents, abs=3)
        assert y[later].std() == pytest.approx(x[later].std(), rel=0.1)
        assert np.abs(y[: SIZE // 2 - sound.FRAME]).max() < 1e-3
        if not cents:
            np.testing.assert_allclose(y, x, atol=2e-3 * float(np.abs(x).max()))
    x = windows(1)[0]
    np.testing.assert_allclose(shift(x, jnp.float32(0)), x, atol=2e-3 * float(np.abs(x).max()))


def test_pitch_looks_no_further_ahead_than_it_says():
    """A sample depends on input within 32 ms, so c_t sees no further into the future."""
    x, at = windows(1)[0], 5000
    changed = x.at[at:].add(windows(1, seed=1)[0, at:])
    for cents in (-300.0, 300.0):
        moved = np.asarray(shift(changed, jnp.float32(cents)) - shift(x, jnp.float32(cents)))
        first = np.flatnonzero(np.abs(moved) > 1e-6)[0]
        assert at - sound.FRAME * 2 ** (300 / 1200) <= first < at
        energy = np.square(moved)
        assert energy[: at - 256].sum() < 0.002 * energy.sum()


def test_noise_is_another_row_at_the_ratio_asked():
    number = jnp.array([SIZE, 5000, 3000, SIZE])
    real = np.arange(SIZE) < np.asarray(number)[:, None]
    x = np.where(real, windows(), 0)
    ranges = RANGES._replace(snr_low_db=7.0, snr_high_db=7.0)
    y = augment(jax.random.key(3), x, ("noise",), ranges, num_samples=number)
    noise = np.asarray(y) - x
    ratio = 10 * np.log10(np.square(x).sum(1) / np.square(noise).sum(1))
    np.testing.assert_allclose(ratio, 7, atol=1e-3)
    assert (noise[~real] == 0).all()
    for row, added in enumerate(noise):  # each is a multiple of one other row
        likeness = [
            np.corrcoef(added[real[row]], (x[other] * real[row])[real[row]])[0, 1]
            for other in range(4)
        ]
        assert likeness[row] < 0.5
        assert max(likeness) > 0.999


def test_noise_is_a_stranger_where_there_is_one():
    speaker = jnp.array([0, 0, 1, 0, 1, 0])
    draw = jax.vmap(lambda key, speaker: sound.draw_others(key, 6, speaker), (0, None))
    keys = jax.random.split(jax.random.key(0), 20)
    assert (speaker[draw(keys, speaker)] != speaker).all()
    assert (draw(keys, jnp.zeros(6, int)) != jnp.arange(6)).all()
    x = windows().at[1].set(0)  # silence gets no noise, and gives none
    assert (np.asarray(sound.mix(x[1], x[0], jnp.float32(5))) == 0).all()
    np.testing.assert_array_equal(sound.mix(x[0], x[1], jnp.float32(5)), x[0])
    x = jnp.tile(windows(2), (100, 1))
    noise = np.asarray(augment(jax.random.key(0), x, ("noise",), RANGES) - x)
    ratio = 10 * np.log10(np.square(x).sum(1) / np.square(noise).sum(1))
    np.testing.assert_allclose([ratio.min(), ratio.max()], [5, 20], atol=0.5)
    assert ratio.mean() == pytest.approx(12.5, abs=1)


def test_reverberation_keeps_the_energy_and_says_nothing_of_the_future():
    x = np.zeros((2, SIZE), np.float32)
    x[:, 1000], x[:, 1900] = 0.5, -0.2
    number = 3000
    numbers = jnp.array([number, SIZE])
    y = np.asarray(augment(jax.random.key(1), x, ("reverb",), RANGES, num_samples=numbers))
    np.testing.assert_allclose(np.square(y).sum(1), np.square(x).sum(1), rtol=1e-4)
    assert np.abs(y[:, :1000]).max() < 1e-6
    assert np.abs(y[:, 1001:1400]).max() > 3e-3
    assert (y[0, number:] == 0).all()


def test_a_room_decays_by_60_db_in_its_time():
    x, keys = jnp.zeros(SIZE).at[0].set(1), jax.random.split(jax.random.key(0), 40)
    rooms = jax.jit(jax.vmap(sound.reverberate, (0, None, None, None)), static_argnums=3)
    energy = np.square(np.asarray(rooms(keys, x, jnp.float32(0.4), 0.5))[:, 1:]).mean(0)
    assert energy.sum() == pytest.approx(0.8, rel=1e-3)  # of 1 in the largest room
    early, late = energy[:400].mean(), energy[3200:3600].mean()
    assert 10 * np.log10(early / late) == pytest.approx(60 * 0.2 / 0.4, abs=1.5)


def test_bands_lie_anywhere_and_are_no_wider_than_asked():
    x = jnp.tile(jnp.zeros(SIZE).at[SIZE // 2].set(1), (60, 1))
    y = np.asarray(augment(jax.random.key(0), x, ("band_reject",), RANGES))
    kept = np.abs(np.fft.rfft(y))
    gone, hz = kept < 0.5, np.fft.rfftfreq(SIZE, 1 / RATE)
    assert kept[gone].min() < 0.01
    np.testing.assert_allclose(np.median(kept, axis=1), 1, atol=0.02)
    widths = gone.sum(1) * hz[1]
    assert widths.max() <= RANGES.band_hz + 2 * sound.EDGE_HZ
    assert widths.max() > 800
    centres = np.array([hz[row].mean() for row in gone if row.any()])
    assert centres.min() < 1500
    assert centres.max() > 6500


def test_dropout_is_one_silence_no_longer_than_asked_in_what_is_real():
    x = jnp.ones((200, 2400))
    number = jnp.where(jnp.arange(200) % 2, 1000, 2400)
    y = np.asarray(augment(jax.random.key(0), x, ("dropout",), RANGES, num_samples=number))
    lengths = []
    for row, real in zip(y, np.asarray(number), strict=True):
        gone = np.flatnonzero(row[:real] == 0)
        lengths.append(len(gone))
        assert not len(gone) or gone[-1] - gone[0] + 1 == len(gone)
        assert (row[real:] == 0).all()
    assert max(lengths) <= 800
    assert max(lengths) > 760
    assert min(lengths) < 40
    for half in (lengths[::2], lengths[1::2]):  # within the unpadded samples
        assert np.mean(half) == pytest.approx(400, rel=0.15)


@pytest.mark.parametrize("effect", sound.EFFECTS)
def test_the_key_decides_a_draw_is_of_its_row_alone_and_padding_changes_nothing(effect):
    x, key, number = windows(), jax.random.key(5), jnp.array([SIZE, 700, 5000, 90])
    whole = jnp.full(4, SIZE)
    y = augment(key, x, (effect,), RANGES, num_samples=whole)
    assert y.dtype == jnp.float32
    other = augment(jax.random.key(6), x, (effect,), RANGES, num_samples=whole)
    assert not np.isclose(y, other).all(axis=1).any()
    assert not np.isclose(y, x).all(axis=1).any()
    if effect != "noise":  # whose sound is another row's
        fewer = augment(key, x[:2], (effect,), RANGES)
        np.testing.assert_allclose(fewer, y[:2], atol=1e-6)
    given = jnp.where(jnp.arange(SIZE) < number[:, None], x, jnp.nan)
    y = np.asarray(augment(key, given, (effect,), RANGES, num_samples=number))
    assert (y[np.arange(SIZE) >= np.asarray(number)[:, None]] == 0).all()
    same = augment(key, jnp.nan_to_num(given), (effect,), RANGES, num_samples=number)
    np.testing.assert_array_equal(y, same)


def test_an_effect_draws_the_same_next_to_others():
    x, key = windows(size=2048), jax.random.key(5)
    alone = augment(key, augment(key, x, ("band_reject",)), ("dropout",))
    together = augment(key, x, ("band_reject", "dropout"))
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert not np.allclose(augment(key, x, ("dropout", "band_reject")), together, atol=1e-4)


def test_nonfinite_results_fall_back_to_the_clean_sound():
    x = windows() * jnp.array([1, 1e25, 1, 1])[:, None]  # its energy is infinite
    y = np.asarray(augment(jax.random.key(0), x, ("reverb",), RANGES))
    np.testing.assert_array_equal(y[1], x[1])
    assert not np.isclose(y[0], x[0]).all()
    assert np.isfinite(y).all()


CHECK = partial(sound.check_effects, ranges=RANGES, window_samples=20480, batch_size=8)


@pytest.mark.parametrize(("given", "sentence"), [
    ({"effects": ["echo"]}, "'echo'"), ({"effects": ["pitch", "pitch"]}, "pitch, pitch"),
    ({"effects": []}, "none"), ({"effects": ["noise"], "batch_size": 1}, "batch of 1"),
    ({"effects": ["pitch"], "window_samples": 500}, "dropout_ms is 50|fewer than the 512"),
    ({"ranges": RANGES._replace(snr_low_db=30)}, "30 to 20 dB"),
    ({"ranges": RANGES._replace(pitch_cents=1300)}, "at most 1200"),
    ({"ranges": RANGES._replace(band_hz=9000)}, "band_hz is 9000"),
    ({"ranges": RANGES._replace(dropout_ms=2000)}, "dropout_ms is 2000.*at most 1280"),
    ({"ranges": RANGES._replace(reverb_seconds=0)}, "reverb_seconds is 0"),
])  # fmt: skip
def test_invalid_effects_are_rejected(given, sentence):
    CHECK(["pitch", "noise"])
    with pytest.raises(UserError, match=sentence):
        CHECK(**{"effects": ["pitch", "noise"], **given})
