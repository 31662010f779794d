"""Packs: recordings that are decoded once into one memory-mapped int16 file."""

import datetime
import hashlib
import json
import os
import time
import zlib
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from cpc.data.cache import Log
from cpc.data.recordings import (
    FULL_SCALE,
    SAMPLE_RATE_HZ,
    Recordings,
    measure_levels,
    read_parts,
    sum_of_squares,
    to_int16,
)
from cpc.data.sources.folder import read_folder
from cpc.data.walk import Skipped, check_skipped, digest_files, walk_files
from cpc.files import part_folder, plain, read_sealed, read_text, replace_folder, write_sealed
from cpc.types import UserError

#: Version of `read_folder`. For a pack with an older version, the headers are read again.
READ_VERSION = 4
INDEX_VERSION = 3
INDEX_NAME, DATA_NAME = "index.json", "samples.int16"
#: File of checksums, uint32. They are the crc32 of each block of samples.
SUMS_NAME = "samples.crc32"
#: New name for the index of a damaged pack, so that the recordings are packed again.
DAMAGED_NAME = "index.damaged.json"
#: Digest of the folder of recordings at the time of packing.
LISTING_NAME = "listing.txt"
#: Number of samples in a block of 64 KB. A window of 20,480 samples is in one or two blocks.
BLOCK_SAMPLES = 1 << 15
#: Limits on the memory used for packing. A longer recording is written in parts.
DECODED_AT_ONCE = 256
SAMPLES_AT_ONCE = 2**26
PROGRESS_SECONDS = 5.0


def pack(
    recordings: Recordings, path: str | Path, log: Log = print, *, max_skipped_fraction: float = 0.1
) -> Recordings:
    """Return recordings that are read from the pack in folder `path`, creating it if needed.

    `samples.int16` contains all utterances one after another, `samples.crc32` contains one checksum
    per 64 KB, and the sealed `index.json` contains the metadata. The pack is created again if the
    recordings have changed or if it is damaged, and it is written atomically. Several processes may
    request the same pack at once. Each process writes a pack, and the first to finish is kept.

    Utterances are converted to 16 bits. A constant offset is subtracted, and an utterance that
    exceeds full scale is divided by its peak. `shortened` lists both alterations.
    Utterances are left out and listed in `skipped` if they do not decode, if they are silent, or if
    they have the same samples as another utterance under any name and format. At most
    `max_skipped_fraction` of the utterances may fail to decode.

    Each block of samples is checked when it is first read. Damage raises `UserError`, and the
    next run of the same command packs the recordings again.
    """
    path = Path(path)
    wanted = _fingerprint(recordings)
    index = _read_index(path)
    problem = _find_problem(index, wanted, path)
    if problem is not None and path.is_dir():
        log(f"{problem}: packing again")
    if index is None or problem is not None:
        try:
            return _make(recordings, wanted, path, log, max_skipped_fraction)
        except OSError as error:
            raise UserError(f"cannot write the pack {path}: {error}") from error
    check_skipped(
        _list_entries(index, "damaged"), len(recordings), max_skipped_fraction, "recordings"
    )
    listed = plain({"skipped": recordings.skipped, "shortened": recordings.shortened})
    if {**index, **listed} != index:  # other files are left out than at the time of packing
        index |= listed
        with suppress(OSError):  # the cache may be shared and read-only
            write_sealed(path / INDEX_NAME, index)
    return _open(index, path, path)


def pack_folder(
    root: str | Path,
    path: str | Path,
    log: Log = print,
    *,
    speaker_level: int = 1,
    max_skipped_fraction: float = 0.1,
) -> Recordings:
    """Return `pack(read_folder(root), path)`, without reading headers of an unchanged folder.

    A folder is unchanged if all files below `root` have the same names, sizes and modification
    times as at the time of packing.
    """
    path = Path(path)
    root = Path(os.path.abspath(root))  # noqa: PTH100 (as `read_folder`)
    walk = walk_files(root)
    speakers = root.parent / "SPEAKERS.TXT"  # contains the speaker names of a LibriSpeech subset
    settings = f"{READ_VERSION} {speaker_level} {max_skipped_fraction} {walk.unreadable!r}"
    listing = digest_files([speakers, *walk.files], settings)
    index, known = _read_index(path), ""
    with suppress(OSError):
        known = read_text(path / LISTING_NAME, "replace")
    if (
        index is not None
        and known == f"{listing} {index['fingerprint']}"
        and _find_problem(index, index["fingerprint"], path) is None
    ):
        return _open(index, path, path)
    recordings = read_folder(root, speaker_level, max_skipped_fraction)
    packed = pack(recordings, path, log, max_skipped_fraction=max_skipped_fraction)
    with suppress(OSError):  # the cache may be shared and read-only
        (path / LISTING_NAME).write_text(f"{listing} {packed.fingerprint}", encoding="utf-8")
    return packed


def _make(
    recordings: Recordings, wanted: str, path: Path, log: Log, max_skipped_fraction: float
) -> Recordings:
    """Write a pack next to `path` and move it there, unless another process finished first."""
    hours = recordings.lengths.sum() / SAMPLE_RATE_HZ / 3600
    log(f"packing {len(recordings)} utterances, {hours:.2f} h, in {path}")
    with part_folder(path) as part:
        index = _write_samples(recordings, part / DATA_NAME, log)
        for name, reason in (*index["damaged"], *index["left_out"]):
            log(f"skipped {name}: {reason}")
        for name, note in (*recordings.shortened, *index["altered"]):
            log(f"{name}: {note}")
        check_skipped(index["damaged"], len(recordings), max_skipped_fraction, "recordings")
        if not index["names"]:
            raise UserError(
                f"nothing to pack: none of the {len(recordings)} recordings has sound that decodes"
            )
        with (part / DATA_NAME).open("rb") as file:
            blocks = iter(lambda: file.read(2 * BLOCK_SAMPLES), b"")
            sums = np.asarray([zlib.crc32(block) for block in blocks], "<u4")
        sums.tofile(part / SUMS_NAME)
        index |= {"version": INDEX_VERSION, "fingerprint": wanted}
        index |= {"skipped": recordings.skipped, "shortened": recordings.shortened}
        index["crc32_of_sums"] = zlib.crc32(sums.tobytes())
        write_sealed(part / INDEX_NAME, index)
        # Open before moving: the mapped file stays valid even if others replace `path`.
        made = _open(index, part, path)
        finished = _read_index(path)
        if finished is not None and _find_problem(finished, wanted, path) is None:
            return _open(finished, path, path)
        replace_folder(part, path)
        return made


def _open(index: dict, folder: Path, path: Path) -> Recordings:
    """Return the recordings of the pack in `folder`, which is `path` or will be moved there."""
    data = folder / DATA_NAME
    samples = np.asarray(np.memmap(data, "<i2", "r"))  # a plain array is faster to slice
    lengths = np.asarray(index["lengths"], np.int64)
    status, offsets = data.stat(), (np.cumsum(lengths) - lengths).tolist()
    sums = _read_sums(index, folder)
    is_unchecked = np.ones(len(sums), bool)

    def complain(block: int) -> NoReturn:
        remedy = "run the same command again to repack"
        try:
            if os.path.samestat((path / DATA_NAME).stat(), status):
                (path / INDEX_NAME).rename(path / DAMAGED_NAME)
        except FileNotFoundError:
            pass  # another thread or process has renamed it
        except OSError:  # the cache may be shared and read-only
            remedy = "remove that folder and run the same command again"
        raise UserError(
            f"the pack {path} is damaged (wrong checksum of block {block} of {DATA_NAME}): {remedy}"
        )

    def read(position: int, start: int, stop: int) -> np.ndarray:
        begin, end = offsets[position] + start, offsets[position] + stop
        for block in range(begin // BLOCK_SAMPLES, -(-end // BLOCK_SAMPLES)):
            if is_unchecked[block]:
                content = samples[block * BLOCK_SAMPLES : (block + 1) * BLOCK_SAMPLES]
                if zlib.crc32(content.data) != sums[block]:
                    complain(block)
                is_unchecked[block] = False
        return samples[begin:end].astype(np.int16)

    return Recordings(
        names=tuple(index["names"]),
        speakers=tuple(index["speakers"]),
        lengths=lengths,
        read=read,
        rms=np.asarray(index["rms"], np.float32),
        skipped=_list_entries(index, "skipped", "damaged", "left_out"),
        shortened=_list_entries(index, "shortened", "altered"),
        fingerprint=index["fingerprint"],
    )


def _list_entries(index: dict, *keys: str) -> tuple[Skipped, ...]:
    return tuple((name, reason) for key in keys for name, reason in index[key])


def _read_index(path: Path) -> dict | None:
    """Return the index of a pack, or None if it is missing, damaged or of another version."""
    with suppress(UserError):
        index = read_sealed(path / INDEX_NAME)
        return index if index.get("version") == INDEX_VERSION else None
    return None


def _read_sums(index: dict, folder: Path) -> np.ndarray:
    """Return the checksums of the blocks, or an empty array if they do not match the index."""
    with suppress(OSError):
        content = (folder / SUMS_NAME).read_bytes()
        if zlib.crc32(content) == index["crc32_of_sums"]:
            return np.frombuffer(content, "<u4")
    return np.zeros(0, "<u4")


def _find_problem(index: dict | None, wanted: str, path: Path) -> str | None:
    """Return the reason why a pack cannot be used, or None if it can be used."""
    if index is None:
        return f"the pack {path} is damaged or of another version"
    if index["fingerprint"] != wanted:
        return f"the recordings have changed since the pack {path} was made"
    data = path / DATA_NAME
    if not data.exists() or data.stat().st_size != 2 * sum(index["lengths"]):
        return f"the pack {path} is truncated"
    if len(_read_sums(index, path)) != -(-data.stat().st_size // (2 * BLOCK_SAMPLES)):
        return f"the pack {path} is damaged (its checksums are missing or wrong)"
    return None


def _fingerprint(recordings: Recordings) -> str:
    digest = hashlib.sha256(f"{INDEX_VERSION} {recordings.fingerprint}".encode())
    for column in (recordings.names, recordings.speakers, recordings.lengths.tolist()):
        digest.update(json.dumps(column).encode())
    return digest.hexdigest()


class LeftOutError(UserError):
    """Raised if an undamaged utterance is left out because it is silent or a copy."""


def _write_samples(recordings: Recordings, path: Path, log: Log) -> dict[str, Any]:
    """Decode utterances on all cores, write them in order, and return the index columns."""
    columns = "names", "speakers", "lengths", "rms", "damaged", "left_out", "altered"
    index, first_with, stop = {name: [] for name in columns}, {}, 0
    began = logged = time.monotonic()
    with path.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
        while stop < len(recordings):
            # Decode several short recordings together, or a single long one.
            total = np.cumsum(recordings.lengths[stop : stop + DECODED_AT_ONCE].astype(float))
            number = max(1, int(np.searchsorted(total, SAMPLES_AT_ONCE, "right")))
            batch = range(stop, stop + number)
            decoded = deque(pool.submit(_decode, recordings, position) for position in batch)
            for position in batch:
                begin = file.tell()
                try:
                    parts, notes = decoded.popleft().result()
                    _write_one(file, parts, notes, position, recordings, index, first_with)
                except UserError as error:
                    file.seek(begin)
                    file.truncate()
                    column = "left_out" if isinstance(error, LeftOutError) else "damaged"
                    index[column].append((recordings.names[position], str(error)))
            stop = batch.stop
            if time.monotonic() - logged > PROGRESS_SECONDS:
                logged = time.monotonic()
                log(_format_progress(recordings.lengths, stop, logged - began))
    return index


def _decode(recordings: Recordings, index: int) -> tuple[Iterable[np.ndarray], list[str]]:
    """Return an utterance as short int16 arrays, and notes on its alterations.

    An utterance that is too long for memory is decoded twice, the second time by the iterator.
    """
    notes: list[str] = []
    parts: Iterable[np.ndarray] = read_parts(recordings, index, notes.append)
    if recordings.lengths[index] <= SAMPLES_AT_ONCE:
        parts = list(parts)
        levels = measure_levels(parts)
        parts = [to_int16(part, levels) for part in parts]
    else:
        levels = measure_levels(parts)
        again = read_parts(recordings, index, lambda _: None)
        parts = (to_int16(part, levels) for part in again)
    return parts, [*notes, *levels.describe()]


def _write_one(
    file: BinaryIO,
    parts: Iterable[np.ndarray],
    notes: list[str],
    position: int,
    recordings: Recordings,
    index: dict[str, list],
    first_with: dict[bytes, str],
) -> None:
    """Append the samples of an utterance to `file` and its metadata to `index`.

    `index` is unchanged if this raises an error. `first_with` maps a digest of samples to the first
    utterance with these samples.
    """
    squares, length, digest = 0, 0, hashlib.blake2b(digest_size=16)
    for part in parts:
        samples = part.astype("<i2")
        file.write(samples.data)
        digest.update(samples.data)
        squares, length = squares + sum_of_squares(samples), length + len(samples)
    name, declared = recordings.names[position], int(recordings.lengths[position])
    if not length:
        raise UserError(f"{name} has no samples")
    if not squares:
        raise LeftOutError(f"{name} is silent: all its samples are equal in 16 bits")
    first = first_with.setdefault(digest.digest(), name)
    if first != name:
        raise LeftOutError(f"{name} is a copy: it has the samples of {first}")
    if length < declared:
        note = f"kept, but {length:,} of {declared:,} samples decode: it is damaged or truncated"
        index["altered"].append((name, note))
    index["altered"].extend((name, note) for note in notes)
    index["names"].append(name)
    index["speakers"].append(recordings.speakers[position])
    index["lengths"].append(length)
    index["rms"].append((squares / length) ** 0.5 / FULL_SCALE)


def _format_progress(lengths: np.ndarray, stop: int, seconds: float) -> str:
    packed, left = int(lengths[:stop].sum()), int(lengths[stop:].sum())
    rate = packed / SAMPLE_RATE_HZ / seconds
    seconds_left = datetime.timedelta(seconds=round(seconds * left / max(packed, 1)))
    return (
        f"packed {stop:,} of {len(lengths):,} utterances ({stop / len(lengths):.0%}), "
        f"{rate:,.0f} x real time, {seconds_left} left"
    )
