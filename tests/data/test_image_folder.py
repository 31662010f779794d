import io
import os

import numpy as np
import pytest
from packages import quiet, refuse
from PIL import Image

from cpc import data
from cpc.data import images
from cpc.data.image_file import decode_image
from cpc.files import write_sealed
from cpc.types import UserError


def smooth(y=24, x=32):
    """A color image that JPEG keeps nearly as it is."""
    rows, columns = np.mgrid[:y, :x]
    planes = [8 * rows, 6 * columns, 255 - 4 * rows - 3 * columns]
    return np.stack(planes, -1).clip(0, 255).astype(np.uint8)


def encode(image, form, **options):
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()


COLOR = Image.fromarray(smooth())
GREY = np.asarray(COLOR.convert("L"))
DEEP = GREY.astype(np.uint16) * 256 + 99
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8))
ANIMATED = {"save_all": True, "append_images": [Image.new("RGB", (32, 24))], "lossless": True}
# Name -> (file, tolerance as RGB, shows colors).
FORMATS = {
    "webp": (encode(COLOR, "webp", quality=95), 12, True),
    "cmyk jpeg": (encode(COLOR.convert("CMYK"), "jpeg", quality=95), 6, True),
    "16-bit png": (encode(Image.fromarray(DEEP), "png"), 0, False),
    "gif": (encode(COLOR.quantize(256), "gif"), 16, True),
    "bmp": (encode(COLOR, "bmp"), 0, True),
    "tiff": (encode(COLOR, "tiff", compression="tiff_lzw"), 0, True),
    "ppm": (encode(COLOR, "ppm"), 0, True),
    "pgm of 16 bits": (b"P5 32 24 65535\n" + DEEP.astype(">u2").tobytes(), 0, False),
    "animated webp": (encode(COLOR, "webp", **ANIMATED), 0, True),
    "jpeg of damaged tags": (encode(COLOR, "jpeg", quality=95, subsampling=0,
                                    exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), 6, True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_brought_to_8_bits(name):
    content, tolerance, has_colors = FORMATS[name]
    for channels in (1, 3):
        pixels = decode_image(content, name, size=None, channels=channels)
        assert pixels.dtype == np.uint8
        assert pixels.shape == (24, 32, channels)
        expected = smooth() if has_colors and channels == 3 else GREY[..., None]
        assert np.abs(pixels.astype(int) - expected).max() <= tolerance


def with_alpha(mode, hidden):
    """A ball that fades out, and below alpha 0 a color that nobody sees."""
    y, x = np.mgrid[:24, :32]
    alpha = (255 - 25 * np.hypot(y - 12, x - 16)).clip(0, 255).astype(np.uint8)
    rgb = np.where(alpha[..., None] > 0, smooth(), np.uint8(hidden)).astype(np.uint8)
    return Image.fromarray(np.dstack([rgb, alpha]), "RGBA").convert(mode)


@pytest.mark.parametrize(("mode", "form", "options"), [
    ("LA", "png", {}), ("RGBA", "webp", {"lossless": True, "exact": True}), ("PA", "tiff", {}),
])  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_pixels_are_blended_with_white(mode, form, options, channels):
    red, blue = (
        decode_image(encode(with_alpha("RGBA", hidden).convert(mode), form, **options), "x",
                     size=None, channels=channels).astype(int)
        for hidden in ((255, 0, 0), (0, 0, 255))
    )  # fmt: skip
    assert (red[0, 0] == 255).all()
    rgba = np.asarray(with_alpha("RGBA", (0, 0, 0)).convert(mode).convert("RGBA")).astype(float)
    blended = rgba[..., :3] * rgba[..., 3:] / 255 + 255 - rgba[..., 3:]
    if channels == 3:
        assert np.abs(red - blended).max() <= 1
    if mode != "PA":  # PA also quantizes the hidden colors
        np.testing.assert_array_equal(red, blue)


PALETTE = Image.fromarray(np.full((4, 4), 3, np.uint8))
PALETTE.putpalette(bytes(range(12)))  # one color, the fourth of a palette


@pytest.mark.parametrize(("image", "form", "transparency"), [
    (PALETTE, "png", bytes([255, 255, 255, 0])),
    (Image.new("L", (4, 4), 7), "png", 7),
    (Image.new("RGB", (4, 4), (1, 2, 3)), "png", (1, 2, 3)), (Image.new("1", (4, 4), 0), "png", 0),
    (Image.new("I;16", (4, 4), 700), "png", 700),
])  # fmt: skip
def test_a_transparent_color_is_white(image, form, transparency):
    content = encode(image, form, transparency=transparency)
    for channels in (1, 3):
        assert (decode_image(content, "x", size=4, channels=channels) == 255).all()


@pytest.mark.parametrize("form", ["jpeg", "tiff"])
def test_orientation_is_followed(form):
    """Pillow knows the tags; this one is of an image that was stored a quarter turn."""
    upright, exif = smooth()[:20, :30], Image.Exif()
    exif[0x0112] = 6
    stored = Image.fromarray(np.ascontiguousarray(np.rot90(upright)))
    exact = {"quality": 98, "subsampling": 0} if form == "jpeg" else {}
    turned = decode_image(encode(stored, form, exif=exif, **exact), "x", size=None, channels=3)
    assert turned.shape == upright.shape
    assert np.abs(turned.astype(int) - upright).max() <= (6 if form == "jpeg" else 0)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_lacks_data_before_its_end_is_damaged(progressive):
    noise = NOISE.resize((200, 150), Image.Resampling.NEAREST)
    for channels, left in ((1, 0.3), (3, 0.3), (3, 0.9)):
        image = noise if channels == 3 else noise.convert("L")
        whole = encode(image, "jpeg", progressive=progressive)
        start = whole.index(b"\xff\xda")
        stop = start + int(left * (len(whole) - start))
        assert decode_image(whole, "x", size=30, channels=channels).shape == (30, 30, channels)
        for content in (whole[:stop] + b"\xff\xd9", whole[:stop] + bytes(len(whole) - stop)):
            for size in (None, 30):
                with pytest.raises(UserError, match=r"^x does not decode"):
                    decode_image(content, "x", size=size, channels=channels)
    content = encode(Image.new("RGB", (40, 40), (128, 128, 128)), "jpeg", progressive=progressive)
    film = np.random.default_rng(0).bytes(10**6) + 200 * b"\xff\xda\xff\xd9"
    for whole in (content, content + film):  # as some cameras append
        assert abs(decode_image(whole, "x", size=20, channels=3).astype(int) - 128).max() <= 1


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once():
    content = encode(NOISE.resize((1600, 1600)), "jpeg", progressive=True)
    last = content.rindex(b"\xff\xda")
    many = content[:last] + 5000 * content[last:-2] + b"\xff\xd9"
    with pytest.raises(UserError, match="scans"):
        decode_image(many[: 10**7] + b"\xff\xd9", "x", size=8, channels=3)


def test_pixels_that_are_no_colors_are_refused():
    for dtype in (np.float32, np.int32):
        content = encode(Image.fromarray(np.full((4, 4), 70_000, dtype)), "tiff")
        with pytest.raises(UserError, match="colors"):
            decode_image(content, "x", size=4, channels=1)
    pixels = decode_image(encode(COLOR.convert("1"), "png"), "x", size=None, channels=1)
    assert set(np.unique(pixels)) == {0, 255}


def test_the_central_square_is_resized():
    strip = np.zeros((20, 60, 1), np.uint8)
    strip[:, 20:40] = 200
    content = encode(Image.fromarray(strip[..., 0]), "png")
    for size in (10, 20, 50):
        pixels = decode_image(content, "x", size=size, channels=1)
        assert pixels.shape == (size, size, 1)
        assert (pixels[:, 1:-1] == 200).all()
        assert (pixels[:, [0, -1]] > 100).all()  # the filter also averages the padding


def test_a_large_jpeg_loses_no_detail():
    """It is decoded at a quarter of its size, but never below the requested size."""
    content = encode(NOISE.resize((128, 96), Image.Resampling.NEAREST), "jpeg", quality=98)
    pixels = decode_image(content, "x", size=24, channels=1)
    expected = np.asarray(NOISE.convert("L"))[:, 4:28, None]
    assert np.abs(pixels.astype(int) - expected).mean() < 4


BAD = {
    "empty": b"",
    "cut png": encode(NOISE, "png")[:-200],
    "cut webp": encode(NOISE, "webp")[:-200],
    "flipped png": bytes(b ^ (i == 300) for i, b in enumerate(encode(NOISE, "png"))),
}


def test_damaged_files_are_one_sentence(monkeypatch):
    for name, content in BAD.items():
        with pytest.raises(UserError, match=f"^{name} does not decode"):
            decode_image(content, name, size=8, channels=3)
    monkeypatch.setattr("cpc.data.image_file.MAX_PIXELS", 24 * 32 - 1)
    with pytest.raises(UserError, match=r"32x24 .*767"):
        decode_image(encode(COLOR, "png"), "x", size=8, channels=3)


def flat(value, form="png", size=(6, 6)):
    return encode(Image.new("RGB", size, (value, value, value)), form, **({"lossless": True}))


@pytest.fixture
def folder(tmp_path):
    """Classes of which train has some and val has others; every image has a grey of its own."""
    for number, name in enumerate((
        "train/cat/1.png", "train/cat/2.webp", "train/cat/deep/3.PNG", "train/dog/1.png",
        "train/ant/1.png", "train/.hidden/1.png", "val/cat/1.png", "val/bee/1.png",
    ), start=1):  # fmt: skip
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(flat(10 * number, "webp" if name.endswith("webp") else "png"))
    return tmp_path / "set"


def greys(images):
    return images.pixels[:][:, 0, 0, 0].tolist()


@pytest.mark.parametrize("memory_bytes", [10**9, 0])
def test_splits_classes_and_what_is_left_out(folder, memory_bytes, tmp_path, monkeypatch):
    """Also from the cache of a set that is too large for memory."""
    monkeypatch.setattr(images, "MEMORY_BYTES", memory_bytes)
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    for split, name in (("train", "caf\u00e9"), ("val", "cafe\u0301")):  # one class
        (folder / split / name).mkdir()
        (folder / split / name / "1.png").write_bytes(flat(90))
    train, val = (data.read_image_folder(folder, split, log=quiet) for split in ("train", "val"))
    assert isinstance(train.pixels, data.LazyPixels if memory_bytes == 0 else np.ndarray)
    assert train.class_names == val.class_names == ("ant", "bee", "caf\u00e9", "cat", "dog")
    labels = dict(zip(greys(train), train.labels.tolist(), strict=True))
    assert labels == {10: 3, 20: 3, 30: 3, 40: 4, 50: 0, 90: 2}
    assert (greys(val), val.labels.tolist()) == ([80, 90, 70], [1, 2, 3])
    assert not train.skipped
    assert train.pixels.shape == (6, 6, 6, 3)
    (folder / "train/cat/2.webp").write_bytes(BAD["cut webp"])
    (folder / "train/none").mkdir()
    (folder / "train/dog/r\udce9\n.png").write_bytes(b"")  # Latin-1, and a line's end
    os.mkfifo(folder / "train/cat/fifo.png")
    for name in ("train/cat/b.heic", "stray.png", "more.zip", "train/labels.csv", "README"):
        (folder / name).write_bytes(b"?")
    left_out = ["train/cat/2.webp", "train/cat/fifo.png", r"train/dog/r\udce9\n.png",
                "train/cat/b.heic", "more.zip", "stray.png", "train/none"]  # fmt: skip
    for _ in range(2):
        found = data.read_image_folder(folder, "train", log=quiet, max_skipped_fraction=0.5)
        assert sorted(greys(found)) == [10, 30, 40, 50, 90]
        assert found.labels[greys(found).index(40)] == found.class_names.index("dog")
        assert [path.removeprefix(f"{folder}/") for path, _ in found.skipped] == left_out
        assert all(path in reason for path, reason in found.skipped)
    with pytest.raises(UserError, match=r"3 of 8 images in .*more than 10%: .*2.webp"):
        data.read_image_folder(folder, "train", log=quiet)


def test_folders_that_may_not_be_read_are_listed(folder, monkeypatch):
    (folder / "lost+found").mkdir()
    refuse(monkeypatch, "lost+found", "deep")  # next to the splits, and below a class
    ((path, reason),) = data.read_image_folder(folder, "train", log=quiet).skipped
    assert path.endswith("train/cat/deep")
    assert "cannot be read: Permission denied" in reason
    refuse(monkeypatch, "")
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        data.read_image_folder(folder, "train", log=quiet)


def test_a_large_set_is_checked_once(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MEMORY_BYTES", 0)
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    said = []

    def read(**changes):
        return data.read_image_folder(folder, "train", **{"log": said.append, **changes})

    assert greys(read()) == greys(read())
    assert len(said) == 1
    assert "decoding the 5 images" in said[0]
    (path,) = (tmp_path / "cache/images").iterdir()
    content = path.read_bytes()
    write_sealed(path, {"labels": [], "digests": [], "skipped": []})  # of another form
    assert greys(read()) == [50, 10, 20, 30, 40]
    assert "decoded again" in said[1]
    assert path.read_bytes() == content
    said.clear()
    (folder / "train/cat/1.png").write_bytes(flat(11))
    os.utime(folder / "train/cat/1.png", ns=(0, 0))
    changed = read()
    assert len(said) == 1
    (folder / "train/cat/1.png").unlink()
    with pytest.raises(UserError, match=r"1.png cannot be read: No such file"):
        greys(changed)


def test_what_is_not_there(folder, tmp_path):
    (folder / "test/cat").mkdir(parents=True)
    (tmp_path / "own/several").mkdir(parents=True)
    for name, size in (("0.png", (6, 6)), ("1.jpe", (9, 7))):
        (tmp_path / "own/several" / name).write_bytes(flat(90, size=size))
    for root, split, options, words in (
        (tmp_path / "none", "train", {}, "none"), (folder, "dev", {}, "'dev' .* test, train, val"),
        (folder, "test", {}, "no images in .*test"), (folder, "train", {"channels": 4}, "4"),
        (folder, "train", {"size": 0}, "size is 0"),
        *((folder, split, {}, "test, train, val") for split in ("train/cat", "", "..")),
        (tmp_path / "own", "several", {}, r"several sizes, .*give the size"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            data.read_image_folder(root, split, log=quiet, **options)
    (folder / "test/cat/1.png").write_bytes(b"")
    with pytest.raises(UserError, match="none of the 1 images"):
        data.read_image_folder(folder, "test")
    images = data.read_image_folder(tmp_path / "own", "several", size=5, channels=1, log=quiet)
    assert images.pixels.shape == (2, 5, 5, 1)
    assert images.labels.tolist() == 2 * [data.UNLABELLED]  # without a class
    assert images.class_names == ()


def test_what_is_called_an_image_and_is_of_another_format_is_never_decoded(monkeypatch):
    """Pillow would run Ghostscript for an EPS."""
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was run"))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for form in ("eps", "ico", "tga", "pcx"):
        with pytest.raises(UserError, match=r"^cat\.png does not decode"):
            decode_image(encode(COLOR, form), "cat.png", size=8, channels=3)
