import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cpc import data
from cpc.data.image_file import decode_image
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


def sixteen_bits(form):
    return encode(Image.fromarray(grey().astype(np.uint16) * 256 + 99), form)


def palette(**options):
    return encode(color().quantize(256), "png", **options)


def quiet(_):
    pass


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8))
# Name -> (file, tolerance as RGB, shows colors).
FORMATS = {
    "png": (lambda: encode(color(), "png"), 0, True),
    "lossless webp": (lambda: encode(color(), "webp", lossless=True), 0, True),
    "webp": (lambda: encode(color(), "webp", quality=95), 12, True),
    "jpeg": (lambda: encode(color(), "jpeg", quality=95, subsampling=0), 6, True),
    "cmyk jpeg": (lambda: encode(color().convert("CMYK"), "jpeg", quality=95), 6, True),
    "grey jpeg": (lambda: encode(color().convert("L"), "jpeg", quality=95), 6, False),
    "grey png": (lambda: encode(color().convert("L"), "png"), 0, False),
    "16-bit png": (lambda: sixteen_bits("png"), 0, False),
    "palette": (palette, 16, True),
    "palette, one transparent": (lambda: palette(transparency=3), 16, True),
    "palette with alpha": (lambda: palette(transparency=bytes([0, 128] + 254 * [255])), 16, True),
    "rgba": (lambda: encode(color().convert("RGBA"), "png"), 0, True),
    "grey with alpha": (lambda: encode(color().convert("LA"), "png"), 0, False),
    "animated webp": (
        lambda: encode(
            color(),
            "webp",
            save_all=True,
            append_images=[Image.new("RGB", (32, 24))],
            lossless=True,
        ),
        0,
        True,
    ),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_format_is_brought_to_8_bits(name, channels):
    make, tolerance, has_colors = FORMATS[name]
    pixels = decode_image(make(), name, size=None, channels=channels)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (24, 32, channels)
    expected = smooth() if has_colors and channels == 3 else grey()[..., None]
    assert np.abs(pixels.astype(int) - expected).max() <= tolerance


def test_one_bit():
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
        assert (pixels[:, [0, -1]] > 100).all()  # the filter sees what lies beyond


def test_a_large_jpeg_loses_no_detail():
    """It decodes to a quarter of its size, never to less than what is asked for."""
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
    "text": b"hello",
    "cut jpeg": encode(NOISE, "jpeg")[:-200],
    "cut png": encode(NOISE, "png")[:-200],
    "cut webp": encode(NOISE, "webp")[:-200],
    "flipped png": bytes(b ^ (i == 300) for i, b in enumerate(encode(NOISE, "png"))),
    "bomb": bomb(),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_files_are_one_sentence(name):
    with pytest.raises(UserError, match=f"^{name} (does not decode|is 60000x60000)"):
        decode_image(BAD[name], name, size=8, channels=3)


def test_just_too_large(monkeypatch):
    monkeypatch.setattr("cpc.data.image_file.MAX_PIXELS", 24 * 32 - 1)
    with pytest.raises(UserError, match="32x24 pixels, more than 767"):
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


@pytest.mark.parametrize("memory_bytes", [10**9, 0])
def test_splits_and_classes(folder, tmp_path, memory_bytes):
    def read(split):
        return data.read_image_folder(
            folder, split, log=quiet, memory_bytes=memory_bytes, cache=tmp_path / "cache"
        )

    train, val = read("train"), read("val")
    assert isinstance(train.pixels, data.LazyPixels if memory_bytes == 0 else np.ndarray)
    assert train.class_names == val.class_names == ("ant", "bee", "cat", "dog")
    assert dict(zip(greys(train), train.labels.tolist(), strict=True)) == {
        10: 2,
        20: 2,
        30: 2,
        40: 3,
        50: 0,
    }
    assert (greys(val), val.labels.tolist()) == ([80, 70], [1, 2])
    assert not train.skipped
    assert train.pixels.shape == (5, 6, 6, 3)


@pytest.mark.parametrize("memory_bytes", [10**9, 0])
def test_damaged_and_empty_are_listed(folder, tmp_path, memory_bytes):
    (folder / "train/cat/2.webp").write_bytes(BAD["cut webp"])
    (folder / "train/none").mkdir()
    name = "r" + chr(0xDCE9) + "\n.png"  # Latin-1, and a line's end
    (folder / "train/dog" / name).write_bytes(b"")
    for _ in range(2):  # the second time from the cache
        images = data.read_image_folder(
            folder,
            "train",
            log=quiet,
            max_skipped_fraction=0.5,
            memory_bytes=memory_bytes,
            cache=tmp_path / "cache",
        )
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


def test_a_large_set_is_checked_once(folder, tmp_path):
    said = []

    def read(**changes):
        options = {"log": said.append, "memory_bytes": 0, "cache": tmp_path / "cache", **changes}
        return data.read_image_folder(folder, "train", **options)

    assert greys(read()) == greys(read())
    assert len(said) == 1
    assert "decoding the 5 images" in said[0]
    (folder / "train/cat/1.png").write_bytes(flat(11))
    os.utime(folder / "train/cat/1.png", ns=(0, 0))
    images = read()
    assert len(said) == 2
    (folder / "train/cat/1.png").unlink()
    with pytest.raises(UserError, match=r"1.png cannot be read: No such file"):
        greys(images)


def test_images_without_a_class(tmp_path):
    for i in range(3):
        path = tmp_path / "unlabelled" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(flat(i))
    images = data.read_image_folder(tmp_path, "unlabelled", log=quiet)
    assert images.labels.tolist() == 3 * [data.UNLABELLED]
    assert images.class_names == ()


def test_several_sizes(folder):
    (folder / "train/cat/4.png").write_bytes(flat(90, size=(9, 7)))
    with pytest.raises(UserError, match=r"several sizes, .*give the size"):
        data.read_image_folder(folder, "train", log=quiet)
    images = data.read_image_folder(folder, "train", size=5, channels=1, log=quiet)
    assert images.pixels.shape == (6, 5, 5, 1)
    assert 90 in greys(images)


def test_what_is_not_there(folder, tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        data.read_image_folder(tmp_path / "none", "train")
    with pytest.raises(UserError, match=r"no split 'test' in .*: it has train, val"):
        data.read_image_folder(folder, "test")
    (folder / "test/cat").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no images in .*test: looked for jpeg"):
        data.read_image_folder(folder, "test")
    (folder / "test/cat/1.png").write_bytes(b"")
    with pytest.raises(UserError, match="none of the 1 images"):
        data.read_image_folder(folder, "test")
    with pytest.raises(UserError, match="channels is 4"):
        data.read_image_folder(folder, "train", channels=4)
    with pytest.raises(UserError, match="size is 0"):
        data.read_image_folder(folder, "train", size=0)


def other(form):
    return encode(color(), form)


def text_bomb():
    """A comment of 80 MB in 80 kB."""
    content = other("png")
    text = b"Comment\0\0" + zlib.compress(bytes(80 * 2**20), 9)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text
    chunk += struct.pack(">I", zlib.crc32(chunk[4:]))
    return content[:33] + chunk + content[33:]


@pytest.mark.parametrize("form", ["gif", "tiff", "bmp", "ppm", "eps"])
def test_what_is_called_an_image_and_is_of_another_format_is_never_decoded(form, monkeypatch):
    """Pillow would run Ghostscript for an EPS."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was run"))
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was run"))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(UserError, match=r"^cat\.png does not decode"):
        decode_image(other(form), "cat.png", size=8, channels=3)


def test_a_bomb_of_text_is_one_sentence():
    with pytest.raises(UserError, match=r"^cat\.png does not decode"):
        decode_image(text_bomb(), "cat.png", size=8, channels=3)


def test_memory_that_is_not_there_is_one_sentence(monkeypatch):
    def load(_):
        raise MemoryError

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(UserError, match=r"^cat\.png does not decode"):
        decode_image(other("png"), "cat.png", size=8, channels=3)


def read_all_but(folder, **options):
    return data.read_image_folder(folder, "train", log=quiet, max_skipped_fraction=0.9, **options)


def test_what_is_no_file_is_never_opened(folder):
    os.mkfifo(folder / "train/cat/fifo.png")
    (folder / "train/cat/zero.png").symlink_to("/dev/zero")
    (folder / "train/gone.png").symlink_to("nowhere")
    images = read_all_but(folder)
    assert len(images) == 5
    reasons = [reason for _, reason in images.skipped]
    assert ["is no file" in reason for reason in reasons] == [False, True, True]
    assert "No such file" in reasons[0]


def test_links_in_circles_end(folder):
    for i in range(2):
        (folder / f"train/cat/{i}").symlink_to(folder / "train/cat")
        (folder / f"train/cat/deep/{i}").symlink_to("..")
    images = read_all_but(folder)
    assert sorted(greys(images)) == [10, 20, 30, 40, 50]
    assert len(images.skipped) == 4
    assert all("links to a folder that is read already" in reason for _, reason in images.skipped)


def test_a_link_to_itself_is_no_folder(folder):
    for path in ("self", "train/self", "train/cat/self", "train/self.png"):
        (folder / path).symlink_to(folder / path)
    images = read_all_but(folder)
    assert sorted(greys(images)) == [10, 20, 30, 40, 50]
    assert len(images.skipped) == 1  # which is called an image


def test_a_class_is_one_however_its_accents_are_written(folder):
    for split, name in (("train", "caf\u00e9"), ("val", "cafe\u0301")):
        (folder / split / name).mkdir()
        (folder / split / name / "1.png").write_bytes(flat(90))
    train, val = (data.read_image_folder(folder, split, log=quiet) for split in ("train", "val"))
    assert train.class_names == val.class_names == ("ant", "bee", "caf\u00e9", "cat", "dog")
    assert train.labels[greys(train).index(90)] == val.labels[greys(val).index(90)] == 2


def test_a_folder_beside_the_splits_may_be_unreadable(folder, monkeypatch):
    (folder / "lost+found").mkdir()
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("lost+found"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert len(read_all_but(folder)) == 5


def test_a_folder_that_may_not_be_read_is_listed(folder, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    images = read_all_but(folder)
    ((path, reason),) = images.skipped
    assert path.endswith("train/cat/deep")
    assert "cannot be read: Permission denied" in reason
    monkeypatch.setattr(os, "scandir", lambda _: refuse("deep"))
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        read_all_but(folder)


def test_a_cache_that_may_not_be_written_is_gone_without(folder, tmp_path):
    (tmp_path / "cache").write_text("in the way of a folder")
    said = []
    images = data.read_image_folder(
        folder, "train", log=said.append, memory_bytes=0, cache=tmp_path / "cache"
    )
    assert sorted(greys(images)) == [10, 20, 30, 40, 50]
    assert "the next run finds this out again" in said[-1]


@pytest.mark.parametrize("split", ["", ".", "..", "train/cat"])
def test_a_split_is_a_name(folder, split):
    with pytest.raises(UserError, match=r"no split .* it has train, val"):
        data.read_image_folder(folder, split, log=quiet)


@pytest.mark.parametrize(
    "harm", ["flip", "cut", "[]", "null", "{}", '{"labels": [], "skipped": []}']
)
def test_a_damaged_cache_is_decoded_again_with_a_sentence(folder, tmp_path, harm):
    (folder / "train/cat/2.webp").write_bytes(BAD["cut webp"])
    said = []

    def read():
        return data.read_image_folder(
            folder,
            "train",
            log=said.append,
            max_skipped_fraction=0.5,
            memory_bytes=0,
            cache=tmp_path / "cache",
        )

    read()
    (path,) = (tmp_path / "cache/images").iterdir()
    content = path.read_bytes()
    if harm == "flip":
        position = content.index(b"2.webp")
        path.write_bytes(content[:position] + b"3" + content[position + 1 :])
    else:
        path.write_bytes(content[:-40] if harm == "cut" else harm.encode())
    images = read()
    assert sorted(greys(images)) == [10, 30, 40, 50]
    assert "2.webp" in images.skipped[0][0]
    assert "decoded again" in said[1]
    assert path.read_bytes() == content
    read()
    assert len(said) == 3
