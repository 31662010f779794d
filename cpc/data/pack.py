"""The pack: all recordings decoded once into one memory-mapped int16 file."""

import datetime
import hashlib
import json
import os
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import numpy as np

from cpc.data.journal import (
    DATA_NAME,
    JOURNAL_NAME,
    Written,
    add_lot,
    crc32_of,
    part_folder,
    read_journal,
)
from cpc.data.log import Log
from cpc.data.recordings import SAMPLE_RATE_HZ, Recordings, root_mean_square
from cpc.data.sources.folder import check_skipped, read_folder
from cpc.files import read_json
from cpc.types import UserError

INDEX_VERSION = 1
#: What a folder of recordings looked like when its pack was made.
LISTING_NAME = "listing.txt"
#: Bounds the memory that packing takes.
DECODED_AT_ONCE = 256
PROGRESS_SECONDS = 5.0
#: To a terminal: the line above is written anew.
REWRITE = "\x1b[F\x1b[K"


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
    have changed or when its checksum is wrong; it appears whole or not at all, and packing that
    was interrupted goes on where it was. Several processes may ask for the same pack at once: each
    writes its own, and the first finished stays. The checksum is computed again only where the
    file is not the one, by size and time of change, that was written with it.

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


def pack_folder(
    root: str | Path,
    path: str | Path,
    log: Log = print,
    *,
    speaker_level: int = 1,
    max_skipped_fraction: float = 0.1,
) -> Recordings:
    """`pack(read_folder(root), path)`; reads no header while the folder is as it was packed.

    As it was: every file below `root` has the same name, size and time of change.

    Raises:
        UserError: as `read_folder` and `pack`.
    """
    path = Path(path)
    listing = _list_folder(Path(root), f"{speaker_level} {max_skipped_fraction}")
    index = _read_index(path)
    if (
        index is not None
        and _read_listing(path) == f"{listing} {index['fingerprint']}"
        and _problem(index, index["fingerprint"], path) is None
    ):
        return _open(index, path)
    recordings = read_folder(root, speaker_level, max_skipped_fraction)
    packed = pack(recordings, path, log, max_skipped_fraction=max_skipped_fraction)
    with suppress(OSError):  # of a cache that others share
        (path / LISTING_NAME).write_text(f"{listing} {packed.fingerprint}", encoding="utf-8")
    return packed


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
        skipped=tuple((where, reason) for where, reason in index["skipped"]),
        fingerprint=index["fingerprint"],
    )


def _read_index(path: Path) -> dict | None:
    try:
        index = read_json(path / "index.json")
    except UserError:
        return None
    return index if index.get("version") == INDEX_VERSION else None


def _problem(index: dict, wanted: str, path: Path) -> str | None:
    """Why a pack cannot be used, None if it can."""
    if index["fingerprint"] != wanted:
        return f"the recordings have changed since the pack {path} was made"
    data = path / DATA_NAME
    if not data.exists() or data.stat().st_size != 2 * sum(index["lengths"]):
        return f"the pack {path} is cut short"
    if index.get("changed_ns") == data.stat().st_mtime_ns:
        return None
    if crc32_of(data) != index["crc32"]:
        return f"the pack {path} is damaged (its checksum is wrong)"
    return None


def _make(
    recordings: Recordings, wanted: str, path: Path, log: Log, max_skipped_fraction: float
) -> Recordings:
    """Write a pack beside `path` and move it there, unless another process was faster."""
    hours = recordings.lengths.sum() / SAMPLE_RATE_HZ / 3600
    log(f"packing {len(recordings)} utterances, {hours:.2f} h, in {path}")
    with part_folder(path, wanted) as (part, journal):
        index = _write(recordings, wanted, part, journal, log, max_skipped_fraction)
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


def _write(
    recordings: Recordings,
    fingerprint: str,
    part: Path,
    journal: TextIO,
    log: Log,
    max_skipped_fraction: float,
) -> dict:
    """Write both files; the index is returned too."""
    written = _write_samples(recordings, part / DATA_NAME, journal, log)
    for name, reason in written.damaged:
        log(f"skipped {name}: {reason}")
    check_skipped(written.damaged, len(recordings), max_skipped_fraction, "the pack")
    lengths = recordings.lengths[written.kept]
    index = {
        "version": INDEX_VERSION,
        "fingerprint": fingerprint,
        "crc32": written.crc32,
        "changed_ns": (part / DATA_NAME).stat().st_mtime_ns,
        "names": [recordings.names[i] for i in written.kept],
        "speakers": [recordings.speakers[i] for i in written.kept],
        "offsets": (np.cumsum(lengths) - lengths).tolist(),
        "lengths": lengths.tolist(),
        "rms": written.rms,
        "skipped": [*recordings.skipped, *written.damaged],
    }
    (part / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (part / JOURNAL_NAME).unlink()
    return index


def _write_samples(recordings: Recordings, path: Path, journal: TextIO, log: Log) -> Written:
    """Decode on all cores, write in order, and note in the journal what is whole.

    Plain writes, because a full disk is then an error and not a crash, as it is for a mapped file.
    """

    def decode(index: int) -> np.ndarray | str:
        try:
            return recordings.read(index, 0, int(recordings.lengths[index])).astype("<i2")
        except UserError as error:
            return str(error)

    path.touch()
    done = read_journal(journal, path)
    if done.stop:
        log(f"going on after {done.stop:,} utterances that were packed before")
    before, began = done.stop, time.monotonic()
    said, again = began, ""
    with path.open("r+b") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
        file.truncate(done.num_bytes)
        file.seek(done.num_bytes)
        for first in range(done.stop, len(recordings), DECODED_AT_ONCE):
            stop, crc32 = min(first + DECODED_AT_ONCE, len(recordings)), done.crc32
            kept, rms, damaged = [], [], []
            some = range(first, stop)
            for index, result in zip(some, pool.map(decode, some), strict=True):
                if isinstance(result, str):
                    damaged.append((recordings.names[index], result))
                    continue
                file.write(result.data)
                crc32 = zlib.crc32(result.data, crc32)
                kept.append(index)
                rms.append(root_mean_square(result))
            file.flush()
            new = Written(stop, file.tell(), crc32, kept, rms, damaged)
            journal.write(json.dumps(new) + "\n")
            journal.flush()
            done = add_lot(done, new)
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                log(again + _progress(recordings.lengths, before, stop, said - began))
                again = REWRITE if log is print and sys.stdout.isatty() else ""
    return done


def _progress(lengths: np.ndarray, start: int, stop: int, seconds: float) -> str:
    """How far packing is that took seconds from one utterance to another."""
    packed, left = int(lengths[start:stop].sum()), int(lengths[stop:].sum())
    rate = packed / SAMPLE_RATE_HZ / seconds
    seconds_left = datetime.timedelta(seconds=round(seconds * left / max(packed, 1)))
    return (
        f"packed {stop:,} of {len(lengths):,} utterances ({stop / len(lengths):.0%}), "
        f"{rate:,.0f} x real time, {seconds_left} left"
    )


def _list_folder(root: Path, options: str) -> str:
    """Digest of the options and of every file below `root`: its name, size and time of change."""
    digest = hashlib.sha256(options.encode())
    files = [root.parent / "SPEAKERS.TXT"]  # which names the speakers of a subset
    for directory, _, names in os.walk(root, followlinks=True):
        files += [Path(directory, name) for name in names]
    for path in sorted(files):
        with suppress(FileNotFoundError):  # also a link to nowhere
            status = path.stat()
            digest.update(os.fsencode(path.absolute()))
            digest.update(f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read_listing(path: Path) -> str | None:
    with suppress(OSError):
        return (path / LISTING_NAME).read_text(encoding="utf-8")
    return None


def _fingerprint(recordings: Recordings) -> str:
    digest = hashlib.sha256(recordings.fingerprint.encode())
    for column in (recordings.names, recordings.speakers, recordings.lengths.tolist()):
        digest.update(json.dumps(column).encode())
    return digest.hexdigest()
