"""Arrays of users become what files of the same content are read as; anything else is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from PIL import Image

from cpc.data import arrays
from cpc.data.image_file import read_image
from cpc.types import UserError

RNG = np.random.default_rng(0)
SOUND = (0.1 * RNG.normal(size=3000)).astype("f")
HOW = {"sample_rate_hz": None, "model_rate_hz": 16_000, "rms": 0.05, "stride": 160}


def take(x, **options):
    return arrays.take_sounds(x, **HOW | options)


def check_sentence(reads, x, **options):
    with pytest.raises(UserError) as error:
        reads(x, **options)
    assert len(str(error.value).split()) <= 30
    assert "\n" not in str(error.value)


def written(scale, dtype, offset=0):
    return np.round(SOUND * scale + offset).astype(dtype)


@pytest.mark.parametrize("rms", [0.05, None])
def test_samples_of_any_type_have_the_same_meaning(rms):
    for x, step in (
        (SOUND.astype(float), 2**-15), (jnp.asarray(SOUND), 2**-15), (SOUND.tolist(), 2**-15),
        (written(2**7, "i1"), 2**-7), (written(2**7, "u1", 128), 2**-7),
        (written(2**15, "i2"), 2**-15), (written(2**31, "i8").astype("i4"), 2**-15),
    ):  # fmt: skip
        (found,), form = take(x, rms=rms)
        factor = rms / SOUND.std() if rms else 1
        assert (found.dtype, form) == (np.float32, "one")
        np.testing.assert_allclose(found, SOUND * factor, atol=(step + 1e-4) * factor, rtol=0.01)


@pytest.mark.parametrize("rate", [8000, 44_100.0, np.int64(48_000)])
def test_other_rates_become_that_of_the_model(rate):
    time = np.arange(int(rate)) / rate
    ((found,), _) = take(0.1 * np.sin(2 * np.pi * 440 * time), sample_rate_hz=rate)
    expected = 0.05 * np.sqrt(2) * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert found.shape == (16_000,)
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=1e-3)
    for wrong in (0, -16_000, 16, "16000", True, 1e9, np.nan, (16_000,)):
        with pytest.raises(UserError, match="sample_rate_hz"):
            take(SOUND, sample_rate_hz=wrong)


def test_a_batch_a_list_and_one_are_told_apart():
    assert [x.shape for x in take(np.stack([SOUND, SOUND]))[0]] == [(3000,)] * 2
    items, form = take([SOUND, SOUND[:50]])
    assert ([x.shape for x in items], form) == ([(3000,), (50,)], "list")
    assert take(SOUND[None])[1] == "batch"


@pytest.mark.parametrize("x", [
    None, "a.wav", [], [[]], SOUND[:0], SOUND[None, :0], np.zeros((0, 9)), SOUND > 0, SOUND + 1j,
    SOUND.astype(object), SOUND.astype(str), SOUND.astype("i8"), SOUND * np.nan,
    written(2**15, "i4"), np.where(np.arange(3000) == 9, np.inf, SOUND), SOUND * 32768,
    np.stack([SOUND, SOUND], 1), SOUND[:, None], SOUND[None, None], np.float32(3),
    [SOUND, SOUND[None]], [SOUND, None], [SOUND, SOUND[:0]],
])  # fmt: skip
def test_what_is_not_sound_is_one_sentence(x):
    check_sentence(take, x)


def test_without_normalization_values_stay():
    np.testing.assert_array_equal(take(SOUND, normalize=False)[0][0], SOUND)
    with pytest.raises(UserError, match="normalize=False"):
        take(written(2**15, "i2"), normalize=False)
    with pytest.raises(UserError, match="16000"):
        take(SOUND, normalize=False, sample_rate_hz=8000)


def test_offset_and_scale_do_not_matter():
    """Floats may exceed full scale, as in a float file."""
    sound = SOUND - SOUND.mean()  # a small offset is kept
    ((wanted,), _) = take(sound)
    for x in (sound + 0.5, sound * 10, sound / 4 - 0.2):
        np.testing.assert_allclose(take(x)[0][0], wanted, atol=2e-4)


def test_series_are_standardized_as_their_files():
    x = RNG.normal(size=(50, 3)) * [1, 100, 0] + [0, 5000, 7]
    (found,), _ = arrays.take_series(x, channels=3, standardize=True)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=0), [1, 1, 0], atol=1e-5)
    (same,), _ = arrays.take_series(x, channels=3, standardize=True, normalize=False)
    np.testing.assert_allclose(same, x, rtol=1e-6)
    (whole,), form = arrays.take_series(np.arange(9), channels=1, standardize=False)
    assert (whole.shape, whole.dtype, form) == ((9, 1), np.float32, "one")
    several, form = arrays.take_series((np.arange(9), np.arange(4)), channels=1, standardize=False)
    assert ([one.shape for one in several], form) == ([(9, 1), (4, 1)], "list")
    assert arrays.take_series(np.zeros((2, 9, 3)), channels=3, standardize=True)[1] == "batch"
    for shape in ((50, 2), (3, 50), (50,), (1, 2, 50, 3), (0, 3)):
        with pytest.raises(UserError, match=r"shape|no values"):
            arrays.take_series(np.zeros(shape), channels=3, standardize=True)
    with pytest.raises(UserError, match="NaN"):
        arrays.take_series(np.full((5, 3), np.nan), channels=3, standardize=True)


@pytest.mark.parametrize(("size", "channels"), [(20, 1), (16, 3), (31, 3)])
def test_images_become_what_their_files_are(tmp_path, size, channels):
    for shape in ((20, 20), (30, 24, 3), (20, 20, 1)):
        pixels = RNG.integers(0, 256, shape, np.uint8)
        Image.fromarray(pixels[..., 0] if shape[2:] == (1,) else pixels).save(tmp_path / "a.png")
        expected = read_image(tmp_path / "a.png", size=size, channels=channels)
        for x in (pixels, pixels / 255, (pixels / 255).astype("f"), pixels.astype("i8")):
            (found,), form = arrays.take_images(x, size=size, channels=channels)
            assert form == "one"
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("x", [
    np.full((8, 8), 1.5), np.full((8, 8), -0.5), np.full((8, 8), 255.0), np.full((8, 8), 256),
    np.full((8, 8), np.nan), np.zeros((8, 8)) > 1, np.zeros((3, 8, 8)), np.zeros((8, 8, 2)),
    np.zeros((2, 3, 8, 8)), np.zeros((5, 8, 8)), np.zeros((0, 8, 8, 3)), np.zeros(8), None,
])  # fmt: skip
def test_what_is_not_an_image_is_one_sentence(x):
    check_sentence(arrays.take_images, x, size=8, channels=1)


def test_sound_is_what_its_file_is_read_as(tmp_path):
    """Sound at another rate is resampled and rounded to 16 bits like a file."""
    from cpc.data import read_all, read_folder

    (tmp_path / "ann").mkdir()
    soundfile.write(tmp_path / "ann" / "a.wav", SOUND, 22_050, "PCM_24")
    x, rate = soundfile.read(tmp_path / "ann" / "a.wav", dtype="int32")
    ((found,), _) = take(x, sample_rate_hz=rate)
    np.testing.assert_allclose(found, read_all(read_folder(tmp_path), 0), rtol=1e-5, atol=1e-6)
