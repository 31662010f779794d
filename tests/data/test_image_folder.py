import io
import os
import struct
import zlib

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


def color():
    return Image.fromarray(smooth())


def grey():
    return np.asarray(color().convert("L"))


def deep():
    return grey().astype(np.uint16) * 256 + 99


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8))
ANIMATED = {"save_all": True, "append_images": [Image.new("RGB", (32, 24))], "lossless": True}
# Name -> (file, tolerance as RGB, shows colors).
FORMATS = {
    "webp": (encode(color(), "webp", quality=95), 12, True),
    "cmyk jpeg": (encode(color().convert("CMYK"), "jpeg", quality=95), 6, True),
    "grey jpeg": (encode(color().convert("L"), "jpeg", quality=95), 6, False),
    "16-bit png": (encode(Image.fromarray(deep()), "png"), 0, False),
    "gif": (encode(color().quantize(256), "gif"), 16, True),
    "bmp": (encode(color(), "bmp"), 0, True),
    "tiff": (encode(color(), "tiff", compression="tiff_lzw"), 0, True),
    "16-bit tiff": (encode(Image.fromarray(deep()), "tiff"), 0, False),
    "ppm": (encode(color(), "ppm"), 0, True),
    "pgm of 16 bits": (b"P5 32 24 65535\n" + deep().astype(">u2").tobytes(), 0, False),
    "rgba": (encode(color().convert("RGBA"), "png"), 0, True),
    "grey with alpha": (encode(color().convert("LA"), "png"), 0, False),
    "animated webp": (encode(color(), "webp", **ANIMATED), 0, True),
    "jpeg of damaged tags": (encode(color(), "jpeg", quality=95, subsampling=0,
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
        expected = smooth() if has_colors and channels == 3 else grey()[..., None]
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


def of_palette():
    """One color, the fourth of a palette."""
    image = Image.fromarray(np.full((4, 4), 3, np.uint8))
    image.putpalette(bytes(range(12)))
    return image


@pytest.mark.parametrize(("image", "form", "transparency"), [
    (of_palette(), "png", bytes([255, 255, 255, 0])), (of_palette(), "gif", 3),
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
    """An image stored with any orientation tag is read upright."""
    upright = smooth()[:20, :30]
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.swapaxes(0, 1), 6: np.rot90(upright), 7: np.rot90(upright.swapaxes(0, 1), 2),
        8: np.rot90(upright, -1),
    }  # fmt: skip
    exact = {"quality": 98, "subsampling": 0} if form == "jpeg" else {}
    for tag, pixels in stored.items():
        exif = Image.Exif()
        exif[0x0112] = tag
        content = encode(Image.fromarray(np.ascontiguousarray(pixels)), form, exif=exif, **exact)
        turned = decode_image(content, "x", size=None, channels=3).astype(int)
        assert turned.shape == upright.shape, tag
        assert np.abs(turned - upright).max() <= (6 if form == "jpeg" else 0), tag
        square = decode_image(content, "x", size=8, channels=3).astype(int)
        expected = decode_image(encode(Image.fromarray(upright), "png"), "x", size=8, channels=3)
        assert np.abs(square - expected).max() <= (6 if form == "jpeg" else 1), tag


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
    pixels = decode_image(encode(color().convert("1"), "png"), "x", size=None, channels=1)
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


def bomb():
    """60,000 x 60,000 pixels in some kilobytes."""

    def chunk(kind, content):
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10**6)))


BAD = {
    "empty": b"",
    "cut png": encode(NOISE, "png")[:-200],
    "cut webp": encode(NOISE, "webp")[:-200],
    "flipped png": bytes(b ^ (i == 300) for i, b in enumerate(encode(NOISE, "png"))),
    "bomb": bomb(),
}


def test_damaged_files_are_one_sentence(monkeypatch):
    for name, content in BAD.items():
        with pytest.raises(UserError, match=f"^{name} (does not decode|is 60000x60000)"):
            decode_image(content, name, size=8, channels=3)
    monkeypatch.setattr("cpc.data.image_file.MAX_PIXELS", 24 * 32 - 1)
    with pytest.raises(UserError, match=r"32x24 .*767"):
        decode_image(encode(color(), "png"), "x", size=8, channels=3)


def flat(value, form="png", size=(6, 6)):
    return encode(Image.new("RGB", size, (value, value, value)), form, **({"lossless": True}))


@pytest.fixture
def folder(tmp_path):
    """Classes of which train has some and val has others; every image has a grey of its own."""
    files = {
        "train/cat/1.png": flat(10),
        "train/cat/2.webp": flat(20, "webp"),
        "train/cat/deep/3.PNG": flat(30),
        "train/dog/1.png": flat(40),
        "train/ant/1.png": flat(50),
        "train/.hidden/1.png": flat(60),
        "train/cat/._1.png": b"what macOS leaves beside files",
        "train/cat/notes.txt": b"not an image",
        "val/cat/1.png": flat(70),
        "val/bee/1.png": flat(80),
    }
    for name, content in files.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "set"


def greys(images):
    return images.pixels[:][:, 0, 0, 0].tolist()


@pytest.fixture
def memory_bytes(request, tmp_path, monkeypatch):
    """How many bytes of images are decoded at once; the others have a cache."""
    monkeypatch.setattr(images, "MEMORY_BYTES", request.param)
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    return request.param


SIZES = pytest.mark.parametrize("memory_bytes", [10**9, 0], indirect=True)
LARGE = pytest.mark.parametrize("memory_bytes", [0], indirect=True)


@SIZES
def test_splits_and_classes(folder, memory_bytes):
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


@SIZES
def test_damaged_and_empty_are_listed(folder, memory_bytes):
    (folder / "train/cat/2.webp").write_bytes(BAD["cut webp"])
    (folder / "train/none").mkdir()
    name = "r" + chr(0xDCE9) + "\n.png"  # Latin-1, and a line's end
    (folder / "train/dog" / name).write_bytes(b"")
    for _ in range(2):  # the second time from the cache
        images = data.read_image_folder(folder, "train", log=quiet, max_skipped_fraction=0.5)
        assert sorted(greys(images)) == [10, 30, 40, 50]
        assert images.labels[greys(images).index(40)] == images.class_names.index("dog")
        assert [path.removeprefix(f"{folder}/train/") for path, _ in images.skipped] == [
            "cat/2.webp",
            "dog/r\\udce9\\n.png",
            "none",
        ]
        assert all(path in reason for path, reason in images.skipped)
    with pytest.raises(UserError, match=r"2 of 6 images in .*more than 10%: .*2.webp"):
        data.read_image_folder(folder, "train", log=quiet)


@LARGE
def test_a_large_set_is_checked_once(folder, tmp_path, memory_bytes):
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
    images = read()
    assert len(said) == 1
    (folder / "train/cat/1.png").unlink()
    with pytest.raises(UserError, match=r"1.png cannot be read: No such file"):
        greys(images)


def test_what_is_not_there(folder, tmp_path):
    (folder / "test/cat").mkdir(parents=True)
    (tmp_path / "own/several").mkdir(parents=True)
    for i, size in enumerate(((6, 6), (9, 7))):
        (tmp_path / f"own/several/{i}.png").write_bytes(flat(90, size=size))
    for root, split, options, words in (
        (tmp_path / "none", "train", {}, "none"), (folder, "dev", {}, "'dev' .* test, train, val"),
        (folder, "test", {}, "no images in .*test"), (folder, "train", {"channels": 4}, "4"),
        (folder, "train", {"size": 0}, "size is 0"), (folder, "train/cat", {}, "test, train, val"),
        (folder, "", {}, "test, train, val"), (folder, "..", {}, "test, train, val"),
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


def text_bomb():
    """A comment of 80 MB in 80 kB."""
    content = encode(color(), "png")
    text = b"Comment\0\0" + zlib.compress(bytes(80 * 2**20), 9)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text
    chunk += struct.pack(">I", zlib.crc32(chunk[4:]))
    return content[:33] + chunk + content[33:]


def test_what_is_called_an_image_and_is_of_another_format_is_never_decoded(monkeypatch):
    """Pillow would run Ghostscript for an EPS."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was run"))
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was run"))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    others = [encode(color(), form) for form in ("eps", "ico", "tga", "pcx", "pdf")]
    for content in (*others, text_bomb()):
        with pytest.raises(UserError, match=r"^cat\.png does not decode"):
            decode_image(content, "cat.png", size=8, channels=3)

    def load(_):
        raise MemoryError

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(UserError, match=r"^cat\.png does not decode"):
        decode_image(encode(color(), "png"), "cat.png", size=8, channels=3)


def read_all_but(folder):
    return data.read_image_folder(folder, "train", size=8, log=quiet, max_skipped_fraction=0.9)


def test_every_file_is_read_listed_or_known_and_opened_if_it_is_one(folder):
    for ending, form in {"jfif": "jpeg", "jpe": "jpeg", "TIF": "tiff", "bmp": "bmp"}.items():
        (folder / f"train/cat/a.{ending}").write_bytes(encode(color(), form))
    listed = {"train/cat/b.heic", "train/x.avif", "train/dog/1.svg", "train/cat/c", "stray.png",
              "test.tar.gz", "more.zip", "images.npz", "noend"}  # fmt: skip
    known = ("train/cat/labels.csv", "train/LICENSE", "README", "labels.csv", ".hidden")
    for name in (*listed, *known):
        (folder / name).write_bytes(b"?")
    os.mkfifo(folder / "train/cat/fifo.png")
    (folder / "train/cat/zero.png").symlink_to("/dev/zero")
    (folder / "train/gone.png").symlink_to("nowhere")
    for path in ("self", "train/self", "train/cat/self", "train/self.png"):
        (folder / path).symlink_to(folder / path)
    images = read_all_but(folder)
    assert len(images) == 9
    why = {name.removeprefix(f"{folder}/"): reason for name, reason in images.skipped}
    links = {"self", "train/self", "train/cat/self", "train/self.png"}
    odd = {"train/cat/fifo.png", "train/cat/zero.png", "train/gone.png"}
    assert set(why) == listed | odd | links
    beside = {"stray.png", "test.tar.gz", "more.zip", "images.npz", "noend"}
    assert beside <= {name for name, reason in why.items() if "outside all splits" in reason}
    assert ["not a regular file" in why[name] for name in sorted(odd)] == [True, True, False]
    assert "No such file" in why["train/gone.png"]


def test_folders_that_may_not_be_read_are_listed(folder, monkeypatch):
    (folder / "lost+found").mkdir()
    refuse(monkeypatch, "lost+found")  # next to the splits
    assert len(read_all_but(folder)) == 5
    refuse(monkeypatch, "deep")
    ((path, reason),) = read_all_but(folder).skipped
    assert path.endswith("train/cat/deep")
    assert "cannot be read: Permission denied" in reason
    refuse(monkeypatch, "")
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        read_all_but(folder)
