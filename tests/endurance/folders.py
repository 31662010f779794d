"""Folders with unusual files: good files are read exactly, unusual ones reported."""

import io
import itertools
import os
import shutil
import struct
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from cpc.data import pack_folder, read_image_folder
from tests.endurance.tries import attempt


def sound(rng, suffix="flac", seconds=0.3, value=0.0):
    """Return a file of noise with one chosen sample."""
    x = rng.normal(0, 0.1, int(16000 * seconds)).clip(-1, 1).astype(np.float32)
    x[int(rng.integers(len(x)))] = value
    file = io.BytesIO()
    soundfile.write(file, x, 16000, "FLOAT" if suffix == "wav" else None, format=suffix)
    return file.getvalue()


def picture(rng, kind, size=12):
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (size, size), np.uint8)).save(file, format=kind)
    return file.getvalue()


def half(rng, content):
    return content[: int(rng.integers(len(content) - 12))]


def flipped(rng, content):
    changed = bytearray(content)
    for where in rng.integers(0, len(content), 3):
        changed[where] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def wav_that_claims(rng, rate, num_bytes):
    data = rng.bytes(9600)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1,
                       rate, 2 * rate, 2, 16, b"data", num_bytes)  # fmt: skip
    return head + data


def flac_that_claims(rng, num_samples):
    content = sound(rng)
    word = int.from_bytes(content[18:26], "big")  # bits: rate 20, channels 3, depth 5, samples 36
    return content[:18] + ((word >> 36 << 36) | num_samples).to_bytes(8, "big") + content[26:]


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 12\n%%EndComments\n%%EOF\n"
#: Name -> suffix, and the content or a function that makes the file.
ODD_SOUNDS = {
    "empty": (".wav", lambda rng: b""),
    "noise": (".flac", lambda rng: rng.bytes(500)),
    **{f"half {end}": (f".{end}", lambda rng, end=end: half(rng, sound(rng, end, 2)))
       for end in ("wav", "flac", "ogg", "mp3")},
    **{f"flipped {end}": (f".{end}", lambda rng, end=end: flipped(rng, sound(rng, end, 2)))
       for end in ("flac", "ogg", "mp3")},
    "NaN": (".wav", lambda rng: sound(rng, "wav", value=np.nan)),
    "infinity": (".wav", lambda rng: sound(rng, "wav", value=np.inf)),
    "1 Hz": (".wav", lambda rng: wav_that_claims(rng, 1, 9600)),
    "4 GB": (".wav", lambda rng: wav_that_claims(rng, 16000, 2**32 - 100)),
    "unknown length": (".flac", lambda rng: flac_that_claims(rng, 0)),
    "68e9 samples": (".flac", lambda rng: flac_that_claims(rng, 2**36 - 1)),
    "name of bytes": (os.fsdecode(b"\xff.wav"), lambda rng: b"RIFF"),
}  # fmt: skip
ODD_IMAGES = {
    "empty": (".png", lambda rng: b""),
    "half": (".png", lambda rng: half(rng, picture(rng, "PNG"))),
    "EPS": (".png", lambda rng: EPS),
    "ICO": (".png", lambda rng: picture(rng, "ICO", 16)),
    "TGA": (".png", lambda rng: picture(rng, "TGA")),
    "noise": (".jpg", lambda rng: rng.bytes(500)),
}
#: Makers of things that are not regular files.
OTHERS = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "two loops": lambda path: [path.with_suffix(f".{i}").symlink_to(".") for i in "ab"],
    "folder": Path.mkdir,
}
#: Lossy if kept, so they must be named.
ALTERED = ("half wav", "half ogg", "half mp3", "NaN", "infinity")


def tries(rng, folder):
    """Yield folders of recordings or images with one to three unusual files."""
    for number in itertools.count(1):
        root, is_sound = folder / f"folder-{number}", rng.random() < 0.7
        odd, end = (ODD_SOUNDS, "flac") if is_sound else (ODD_IMAGES, "png")
        good = {}
        for name, i in itertools.product("ab", range(12)):
            (root / name).mkdir(parents=True, exist_ok=True)
            path = root / name / f"{name}{i}.{end}"
            path.write_bytes(sound(rng) if is_sound else picture(rng, "PNG"))
            x = soundfile.read(path, dtype="int16")[0] if is_sound else np.asarray(Image.open(path))
            good[path.stem if is_sound else x.tobytes().hex()] = x
        names = [*map(str, rng.choice([*odd, *OTHERS], int(rng.integers(1, 4)), replace=False))]
        for i, name in enumerate(names):
            stem = root / "ab"[int(rng.integers(2))] / f"odd{i}"
            if name in OTHERS:
                OTHERS[name](stem.with_suffix(".wav" if is_sound else ".png"))
            else:
                suffix, make = odd[name]
                stem.with_name(stem.name + suffix).write_bytes(make(rng))
        what = f"{'sounds' if is_sound else 'images'}: {', '.join(names)}"
        read = partial(read_sounds, root, names) if is_sound else partial(read_images, root)
        yield attempt(what, read, partial(keeps, good))
        shutil.rmtree(root)


def keeps(good, found):
    return all(name in found and np.array_equal(found[name], x) for name, x in good.items())


def read_sounds(root, odd, said):
    """Return samples by name, or nothing if an altered file is kept and not named."""
    words = []
    to = root.with_name(f"{root.name}-pack")
    packed = pack_folder(root, to, words.append, max_skipped_fraction=0.5)
    found = {name: packed.read(i, 0, int(packed.lengths[i])) for i, name in enumerate(packed.names)}
    shutil.rmtree(to)
    text = " ".join([*words, *map(str, packed.skipped)])
    kept = [f"odd{i}" for i, name in enumerate(odd) if name in ALTERED]
    kept = [name for name in kept if any(one.startswith(name) for one in found)]
    return found if all(name in text for name in kept) else {}


def read_images(root, said):
    images = read_image_folder(
        root.parent, root.name, size=12, channels=1, log=lambda text: None, max_skipped_fraction=0.5
    )
    pixels = [np.asarray(images.pixels[i])[..., 0] for i in range(len(images))]
    return {one.tobytes().hex(): one for one in pixels}
