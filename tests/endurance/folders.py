"""Folders with unusual files: good files are read exactly, unusual ones reported."""

import itertools
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from cpc.data import pack_folder, read_image_folder
from tests.endurance.tries import Try, attempt

Make = Callable[[np.random.Generator, Path], object]


def sound(rng: np.random.Generator, seconds: float = 0.3) -> np.ndarray:
    return rng.normal(0, 0.1, int(16000 * seconds)).clip(-1, 1).astype(np.float32)


def harm(rng: np.random.Generator, path: Path, suffix: str, is_cut: bool) -> None:
    path = path.with_suffix(suffix)
    soundfile.write(path, sound(rng, 2), 16000)
    content = bytearray(path.read_bytes())
    if is_cut:
        del content[int(rng.integers(len(content))) :]
    else:
        for where in rng.integers(0, len(content), 3):
            content[where] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def with_header(rng: np.random.Generator, path: Path, rate: int, num_bytes: int) -> None:
    data = (sound(rng) * 32767).astype("<i2").tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1,
                       rate, 2 * rate, 2, 16, b"data", num_bytes)  # fmt: skip
    path.with_suffix(".wav").write_bytes(head + data)


def flac_that_claims(rng: np.random.Generator, path: Path, num_samples: int) -> None:
    path = path.with_suffix(".flac")
    soundfile.write(path, sound(rng), 16000)
    content = bytearray(path.read_bytes())
    word = int.from_bytes(content[18:26], "big")  # bits: rate 20, channels 3, depth 5, samples 36
    content[18:26] = ((word >> 36 << 36) | num_samples).to_bytes(8, "big")
    path.write_bytes(content)


def with_value(rng: np.random.Generator, path: Path, value: float) -> None:
    x = sound(rng)
    x[int(rng.integers(len(x)))] = value
    soundfile.write(path.with_suffix(".wav"), x, 16000, subtype="FLOAT")


#: Makers of unusual files.
ODD_SOUNDS: dict[str, Make] = {
    "empty": lambda rng, p: p.with_suffix(".wav").write_bytes(b""),
    "noise": lambda rng, p: p.with_suffix(".flac").write_bytes(rng.bytes(500)),
    **{f"half {end}": partial(harm, suffix=f".{end}", is_cut=True)
       for end in ("wav", "flac", "ogg", "mp3")},
    **{f"flipped {end}": partial(harm, suffix=f".{end}", is_cut=False)
       for end in ("flac", "ogg", "mp3")},
    "NaN": lambda rng, p: with_value(rng, p, np.nan),
    "infinity": lambda rng, p: with_value(rng, p, np.inf),
    "1 Hz": lambda rng, p: with_header(rng, p, 1, 9600),
    "4 GB": lambda rng, p: with_header(rng, p, 16000, 2**32 - 100),
    "unknown length": lambda rng, p: flac_that_claims(rng, p, 0),
    "68e9 samples": lambda rng, p: flac_that_claims(rng, p, 2**36 - 1),
    "fifo": lambda rng, p: os.mkfifo(p.with_suffix(".wav")),
    "device": lambda rng, p: p.with_suffix(".wav").symlink_to("/dev/zero"),
    "link to nowhere": lambda rng, p: p.with_suffix(".wav").symlink_to("/nowhere/at/all"),
    "two loops": lambda rng, p: [p.with_name(f"{p.name}{i}").symlink_to(".") for i in "ab"],
    "name of bytes": lambda rng, p: (
        Path(os.fsdecode(os.fsencode(p) + b"\xff.wav")).write_bytes(b"RIFF")),
    "folder named wav": lambda rng, p: p.with_suffix(".wav").mkdir(),
}  # fmt: skip


def image_file(
    rng: np.random.Generator, path: Path, kind: str, size: int = 12, *, is_cut: bool = False
) -> None:
    Image.fromarray(rng.integers(0, 256, (size, size), np.uint8)).save(path, format=kind)
    content = path.read_bytes()
    if is_cut:
        path.write_bytes(content[: int(rng.integers(len(content) - 12))])


#: Lossy if kept, so they must be named.
ALTERED = ("half wav", "half ogg", "half mp3", "NaN", "infinity")

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 12\n%%EndComments\n%%EOF\n"
ODD_IMAGES: dict[str, Make] = {
    "empty": lambda rng, p: p.with_suffix(".png").write_bytes(b""),
    "half": lambda rng, p: image_file(rng, p.with_suffix(".png"), "PNG", is_cut=True),
    "EPS": lambda rng, p: p.with_suffix(".png").write_bytes(EPS),
    "ICO": lambda rng, p: image_file(rng, p.with_suffix(".png"), "ICO", 16),
    "TGA": lambda rng, p: image_file(rng, p.with_suffix(".png"), "TGA"),
    "fifo": lambda rng, p: os.mkfifo(p.with_suffix(".png")),
    "device": lambda rng, p: p.with_suffix(".png").symlink_to("/dev/zero"),
    "noise": lambda rng, p: p.with_suffix(".jpg").write_bytes(rng.bytes(500)),
}


def tries(rng: np.random.Generator, folder: Path) -> Iterator[Try]:
    """Yield folders of recordings or images with one to three unusual files."""
    for number in itertools.count(1):
        root = folder / f"folder-{number}"
        is_sound = rng.random() < 0.7
        odd = ODD_SOUNDS if is_sound else ODD_IMAGES
        names = [*map(str, rng.choice(list(odd), int(rng.integers(1, 4)), replace=False))]
        good = write_sounds(rng, root) if is_sound else write_images(rng, root)
        for i, name in enumerate(names):
            odd[name](rng, root / "ab"[int(rng.integers(2))] / f"odd{i}")

        def use(said, root=root, names=names, is_sound=is_sound):
            return read_sounds(root, names) if is_sound else read_images(root)

        what = f"{'sounds' if is_sound else 'images'}: {', '.join(names)}"
        yield attempt(what, use, partial(keeps, good))
        shutil.rmtree(root)


def keeps(good: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> bool:
    return all(name in found and np.array_equal(found[name], x) for name, x in good.items())


def write_sounds(rng: np.random.Generator, root: Path) -> dict[str, np.ndarray]:
    good = {}
    for speaker in "ab":
        (root / speaker).mkdir(parents=True)
        for i in range(12):
            x = sound(rng)
            soundfile.write(root / speaker / f"{speaker}{i}.flac", x, 16000)
            path = root / speaker / f"{speaker}{i}.flac"
            good[path.stem], _ = soundfile.read(path, dtype="int16")
    return good


def read_sounds(root: Path, odd: Sequence[str]) -> dict[str, np.ndarray]:
    words: list[str] = []
    packed = pack_folder(
        root, root.with_name(f"{root.name}-pack"), words.append, max_skipped_fraction=0.5
    )
    text = " ".join([*words, *map(str, packed.skipped)])
    found = {name: packed.read(i, 0, int(packed.lengths[i])) for i, name in enumerate(packed.names)}
    shutil.rmtree(root.with_name(f"{root.name}-pack"))
    for i, name in enumerate(odd):
        is_kept = any(one.startswith(f"odd{i}") for one in found)
        if name in ALTERED and is_kept and f"odd{i}" not in text:
            return {}
    return found


def write_images(rng: np.random.Generator, root: Path) -> dict[str, np.ndarray]:
    good = {}
    for name in "ab":
        (root / name).mkdir(parents=True)
        for i in range(12):
            image_file(rng, root / name / f"{name}{i}.png", "PNG")
            pixels = np.asarray(Image.open(root / name / f"{name}{i}.png"))
            good[pixels.tobytes().hex()] = pixels
    return good


def read_images(root: Path) -> dict[str, np.ndarray]:
    images = read_image_folder(
        root.parent, root.name, size=12, channels=1, log=lambda text: None, max_skipped_fraction=0.5
    )
    pixels = [np.asarray(images.pixels[i])[..., 0] for i in range(len(images))]
    return {one.tobytes().hex(): one for one in pixels}
