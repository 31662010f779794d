"""The pack: all recordings decoded once into one memory-mapped int16 file."""

import glob
import hashlib
import json
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cpc.data.folder import check_skipped
from cpc.data.recordings import SAMPLE_RATE_HZ, Recordings, root_mean_square
from cpc.types import UserError

Log = Callable[[str], object]

INDEX_VERSION = 1
DATA_NAME = "samples.int16"
CHUNK_BYTES = 1 << 24
#: Bounds the memory that packing takes.
DECODED_AT_ONCE = 256
#: A half-written pack that nobody has written to for so long is of a process that was killed.
LEFTOVER_SECONDS = 3600


def pack(
    recordings: Recordings,
    path: str | Path,
    log: Log = print,
    *,
    max_skipped_fraction: float = 0.1,
) -> Recordings:
    """The same recordings from a pack in folder `path`, made now unless it is there and current.

    `samples.int16` holds all utterances in a row, `index.json` the rest. An utterance that
    does not decode is left out and listed in `skipped`. The pack is made anew when the recordings
    have changed or when its checksum is wrong; it appears whole or not at all. Several
    processes may ask for the same pack at once: each writes its own, and the first finished stays.

    Raises:
        UserError: more than `max_skipped_fraction` of the utterances do not decode; disk full.
    """
    path = Path(path)
    wanted = _fingerprint(recordings)
    index = _read_index(path)
    problem = None if index is None else _problem(index, wanted, path)
    if problem is not None:
        log(f"{problem}: packing again")
    if index is None or problem is not None:
        try:
            return _make(recordings, wanted, path, log, max_skipped_fraction)
        except OSError as error:
            raise UserError(f"cannot write the pack {path}: {error}") from error
    packed = _open(index, path)
    num_damaged = len(recordings) - len(packed)
    damaged = packed.skipped[len(packed.skipped) - num_damaged :]
    check_skipped(damaged, len(recordings), max_skipped_fraction, "the pack")
    return packed


def open_pack(path: str | Path) -> Recordings:
    """A pack without its source; `UserError` if it is not there, cut short or changed."""
    path = Path(path)
    index = _read_index(path)
    if index is None:
        raise UserError(f"there is no pack in {path}: make one with pack(recordings, path)")
    if problem := _problem(index, index["fingerprint"], path):
        raise UserError(f"{problem}: remove the folder and pack again")
    return _open(index, path)


def _open(index: dict, path: Path) -> Recordings:
    samples = np.asarray(np.memmap(path / DATA_NAME, "<i2", "r"))  # a plain array is quicker to cut
    offsets = np.asarray(index["offsets"], np.int64)

    def read(position: int, start: int, stop: int) -> np.ndarray:
        begin = offsets[position]
        return samples[begin + start : begin + stop].astype(np.int16)

    def gather(positions: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(samples, length)
        return windows[offsets[positions] + starts].astype(np.int16, copy=False)

    return Recordings(
        names=tuple(index["names"]),
        speakers=tuple(index["speakers"]),
        lengths=np.asarray(index["lengths"], np.int64),
        read=read,
        gather=gather,
        rms=np.asarray(index["rms"], np.float32),
        transcripts=index["transcripts"],
        skipped=tuple((where, reason) for where, reason in index["skipped"]),
        fingerprint=index["fingerprint"],
    )


def _read_index(path: Path) -> dict | None:
    try:
        index = json.loads((path / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return index if index.get("version") == INDEX_VERSION else None


def _problem(index: dict, wanted: str, path: Path) -> str | None:
    """Why a pack cannot be used, None if it can."""
    if index["fingerprint"] != wanted:
        return f"the recordings have changed since the pack {path} was made"
    data = path / DATA_NAME
    if not data.exists() or data.stat().st_size != 2 * sum(index["lengths"]):
        return f"the pack {path} is cut short"
    if _crc32(data) != index["crc32"]:
        return f"the pack {path} is damaged (its checksum is wrong)"
    return None


def _make(
    recordings: Recordings, wanted: str, path: Path, log: Log, max_skipped_fraction: float
) -> Recordings:
    """Write a pack beside `path` and move it there, unless another process was faster."""
    hours = recordings.lengths.sum() / SAMPLE_RATE_HZ / 3600
    log(f"packing {len(recordings)} utterances, {hours:.2f} h, in {path}")
    with _part_folder(path) as part:
        index = _write(recordings, wanted, part, log, max_skipped_fraction)
        # Opened before it is moved: the mapped file stays this one, whatever others do to `path`.
        made = _open(index, part)
        while True:
            finished = _read_index(path)
            if finished is not None and _problem(finished, wanted, path) is None:
                return _open(finished, path)
            if path.is_dir():
                with suppress(FileNotFoundError):
                    path.rename(part.with_name(f"{part.name}-replaced"))
            try:
                part.rename(path)
            except OSError:
                if path.is_dir():  # another process was faster by a moment
                    continue
                raise
            return made


@contextmanager
def _part_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path` for this call alone; whatever is left of it goes at the end."""
    for old in path.parent.glob(f"{glob.escape(path.name)}.part-*"):
        samples = old / DATA_NAME
        with suppress(OSError):
            newest = (samples if samples.exists() else old).stat().st_mtime
            if time.time() - newest > LEFTOVER_SECONDS:
                shutil.rmtree(old)
    part = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
    part.mkdir(parents=True)
    try:
        yield part
    finally:
        for old in (part, part.with_name(f"{part.name}-replaced")):
            shutil.rmtree(old, ignore_errors=True)


def _write(
    recordings: Recordings, fingerprint: str, part: Path, log: Log, max_skipped_fraction: float
) -> dict:
    """Write both files; the index is returned too."""
    with (part / DATA_NAME).open("wb") as file:
        kept, rms, damaged, crc32 = _write_samples(recordings, file)
    for name, reason in damaged:
        log(f"skipped {name}: {reason}")
    check_skipped(damaged, len(recordings), max_skipped_fraction, "the pack")
    lengths = recordings.lengths[kept]
    names = [recordings.names[i] for i in kept]
    index = {
        "version": INDEX_VERSION,
        "fingerprint": fingerprint,
        "crc32": crc32,
        "names": names,
        "speakers": [recordings.speakers[i] for i in kept],
        "offsets": (np.cumsum(lengths) - lengths).tolist(),
        "lengths": lengths.tolist(),
        "rms": rms,
        "transcripts": {n: recordings.transcripts[n] for n in names if n in recordings.transcripts},
        "skipped": [*recordings.skipped, *damaged],
    }
    (part / "index.json").write_text(json.dumps(index), encoding="utf-8")
    return index


def _write_samples(
    recordings: Recordings, file: BinaryIO
) -> tuple[list[int], list[float], list[tuple[str, str]], int]:
    """Decode on all cores, write in order: utterances kept, their RMS, the damaged, the checksum.

    Plain writes, because a full disk is then an error and not a crash, as it is for a mapped file.
    """

    def decode(index: int) -> np.ndarray | str:
        try:
            return recordings.read(index, 0, int(recordings.lengths[index])).astype("<i2")
        except UserError as error:
            return str(error)

    kept: list[int] = []
    rms: list[float] = []
    damaged: list[tuple[str, str]] = []
    crc32 = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for first in range(0, len(recordings), DECODED_AT_ONCE):
            some = range(first, min(first + DECODED_AT_ONCE, len(recordings)))
            for index, result in zip(some, pool.map(decode, some), strict=True):
                if isinstance(result, str):
                    damaged.append((recordings.names[index], result))
                    continue
                file.write(result.data)
                crc32 = zlib.crc32(result.data, crc32)
                kept.append(index)
                rms.append(root_mean_square(result))
    return kept, rms, damaged, crc32


def _fingerprint(recordings: Recordings) -> str:
    digest = hashlib.sha256(recordings.fingerprint.encode())
    for column in (recordings.names, recordings.speakers, recordings.lengths.tolist()):
        digest.update(json.dumps(column).encode())
    digest.update(json.dumps(dict(recordings.transcripts), sort_keys=True).encode())
    return digest.hexdigest()


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value
