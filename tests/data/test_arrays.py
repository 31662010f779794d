"""Arrays of users become what files of the same content are read as; anything else is refused."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from PIL import Image

from cpc.data import arrays, read_all, read_folder
from cpc.data.image_file import read_image
from cpc.types import UserError

RNG = np.random.default_rng(0)
SOUND = (0.1 * RNG.normal(size=3000)).astype("f")
SOUND -= SOUND.mean()  # a small offset is kept
HOW = {"sample_rate_hz": None, "model_rate_hz": 16_000, "rms": 0.05, "stride": 160}


def take(x, **options):
    return arrays.take_sounds(x, **HOW | options)


def written(scale, dtype, offset=0):
    return np.round(SOUND * scale + offset).astype(dtype)


@pytest.mark.parametrize("rms", [0.05, None])
def test_samples_of_any_type_have_the_same_meaning(rms):
    """Floats may exceed full scale, as in a float file."""
    for x, step in (
        (SOUND.astype(float), 2**-15), (jnp.asarray(SOUND), 2**-15), (SOUND.tolist(), 2**-15),
        (written(2**7, "i1"), 2**-7), (written(2**7, "u1", 128), 2**-7),
        (written(2**15, "i2"), 2**-15), (written(2**31, "i8").astype("i4"), 2**-15),
        (SOUND + 0.5, 2**-15), *((SOUND * scale, 2**-13) for scale in (10, 0.25) if rms),
    ):  # fmt: skip
        (found,), form = take(x, rms=rms)
        factor = rms / SOUND.std() if rms else 1
        assert (found.dtype, form) == (np.float32, "one")
        np.testing.assert_allclose(found, SOUND * factor, atol=(step + 1e-4) * factor, rtol=0.01)


@pytest.mark.parametrize(("take", "x"), [
    *((take, x) for x in (
        None, "a.wav", [], SOUND[:0], SOUND > 0, SOUND + 1j, SOUND.astype("i8"), SOUND * np.nan,
        written(2**15, "i4"), SOUND * 32768, np.stack([SOUND, SOUND], 1), SOUND[:, None],
        SOUND[None, None], np.float32(3), [SOUND, SOUND[None]], [SOUND, None], [SOUND, SOUND[:0]],
    )),
    *((partial(arrays.take_images, size=8, channels=1), x) for x in (
        np.full((8, 8), 1.5), np.full((8, 8), -0.5), np.full((8, 8), 256), np.full((8, 8), np.nan),
        np.zeros((3, 8, 8)), np.zeros((8, 8, 2)), np.zeros((2, 3, 8, 8)), np.zeros(8), None,
    )),
])  # fmt: skip
def test_other_arrays_are_refused_in_one_sentence(take, x):
    with pytest.raises(UserError) as error:
        take(x)
    assert len(str(error.value).split()) <= 30
    assert "\n" not in str(error.value)


def test_without_normalization_values_stay():
    np.testing.assert_array_equal(take(SOUND, normalize=False)[0][0], SOUND)
    with pytest.raises(UserError, match="normalize=False"):
        take(written(2**15, "i2"), normalize=False)
    with pytest.raises(UserError, match="16000"):
        take(SOUND, normalize=False, sample_rate_hz=8000)


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


@pytest.mark.parametrize("rate", [8000.0, np.int64(22_050)])
def test_sound_is_what_its_file_is_read_as(tmp_path, rate):
    """Sound at another rate is resampled and rounded to 16 bits like a file."""
    soundfile.write(tmp_path / "a.wav", SOUND, int(rate), "PCM_24")
    x, _ = soundfile.read(tmp_path / "a.wav", dtype="int32")
    ((found,), _) = take(x, sample_rate_hz=rate)
    np.testing.assert_allclose(found, read_all(read_folder(tmp_path), 0), rtol=1e-5, atol=1e-6)
    for wrong in (0, -16_000, 16, "16000", True, 1e9, np.nan, (16_000,)):
        with pytest.raises(UserError, match="sample_rate_hz"):
            take(SOUND, sample_rate_hz=wrong)
