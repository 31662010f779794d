"""Writing a pack: utterances decoded on all cores, their checksums, and the index."""

import dataclasses
import datetime
import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import UInt32

from cpc.data.cache import Log
from cpc.data.levels import FULL_SCALE, measure_levels, sum_of_squares, to_int16
from cpc.data.recordings import SAMPLE_RATE_HZ, Recordings, read_parts
from cpc.data.skipped import Skipped, check_skipped
from cpc.files import seal, write_text
from cpc.types import UserError

INDEX_VERSION = 3
INDEX_NAME, DATA_NAME = "index.json", "samples.int16"
#: uint32, the crc32 of each block of the samples.
SUMS_NAME = "samples.crc32"
#: Bytes of a block: a window of 20,480 samples touches one or two.
BLOCK_BYTES = 1 << 16
#: Both bound the memory that packing takes: a longer recording is written a part at a time.
DECODED_AT_ONCE = 256
SAMPLES_AT_ONCE = 2**26
PROGRESS_SECONDS = 5.0
#: To a terminal: the line above is written anew.
REWRITE = "\x1b[F\x1b[K"


class LeftOutError(UserError):
    """An utterance that is left out and is not damaged: it is silent, or a copy."""


class Decoded(NamedTuple):
    """An utterance, int16 in parts, and sentences on how it was altered."""

    parts: Iterable[np.ndarray]
    notes: list[str]


@dataclasses.dataclass
class Written:
    """The samples that are written, and what became of each utterance."""

    num_bytes: int = 0
    crc32: int = 0
    kept: list[int] = dataclasses.field(default_factory=list)
    lengths: list[int] = dataclasses.field(default_factory=list)
    rms: list[float] = dataclasses.field(default_factory=list)
    first_with: dict[bytes, str] = dataclasses.field(default_factory=dict)
    """Digest of samples -> name of the utterance that has them."""
    damaged: list[Skipped] = dataclasses.field(default_factory=list)
    left_out: list[Skipped] = dataclasses.field(default_factory=list)
    """Utterances that are silent, or copies."""
    altered: list[Skipped] = dataclasses.field(default_factory=list)
    """Utterances that are kept incomplete or altered."""


def write_pack(
    recordings: Recordings, fingerprint: str, part: Path, log: Log, max_skipped_fraction: float
) -> dict:
    """Write the samples, their checksums and the index, which is also returned."""
    data = part / DATA_NAME
    written = _write_samples(recordings, data, log)
    for name, reason in (*written.damaged, *written.left_out):
        log(f"skipped {name}: {reason}")
    for name, what in (*recordings.shortened, *written.altered):
        log(f"{name}: {what}")
    check_skipped(written.damaged, len(recordings), max_skipped_fraction, "recordings")
    if not written.num_bytes:
        raise UserError(
            f"none of the {len(recordings)} recordings has sound that decodes: there is nothing to "
            "pack"
        )
    sums, crc32 = sum_blocks(data)
    if crc32 != written.crc32:
        raise OSError("the disk does not give back what was written to it")
    sums.tofile(part / SUMS_NAME)
    lengths = np.asarray(written.lengths, np.int64)
    index = {
        "version": INDEX_VERSION,
        "fingerprint": fingerprint,
        "crc32_of_sums": zlib.crc32(sums.tobytes()),
        "names": [recordings.names[i] for i in written.kept],
        "speakers": [recordings.speakers[i] for i in written.kept],
        "offsets": (np.cumsum(lengths) - lengths).tolist(),
        "lengths": lengths.tolist(),
        "rms": written.rms,
        "damaged": written.damaged,
        "left_out": written.left_out,
        "altered": written.altered,
        "skipped": recordings.skipped,
        "shortened": recordings.shortened,
    }
    write_index(part, index)
    return index


def sum_blocks(path: Path) -> tuple[UInt32[np.ndarray, " blocks"], int]:
    """Return the crc32 of each block of a file, and that of the whole."""
    sums, whole = [], 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            sums.append(zlib.crc32(block))
            whole = zlib.crc32(block, whole)
    return np.asarray(sums, "<u4"), whole


def write_index(folder: Path, index: dict) -> None:
    """Write the index of a pack, with its checksum."""
    write_text(folder / INDEX_NAME, json.dumps(seal(index)))


def parse_index(index: dict) -> dict:
    """Return the index of a pack as `write_pack` made it, given its JSON."""
    names, lengths = index["names"], np.asarray(index["lengths"], np.int64)
    rms = np.asarray(index["rms"], np.float32)
    told = {
        key: [(name, reason) for name, reason in index[key]]
        for key in ("damaged", "left_out", "altered", "skipped", "shortened")
    }
    texts = [index["fingerprint"], *names, *index["speakers"]]
    texts += [text for pairs in told.values() for pair in pairs for text in pair]
    is_whole = (
        index["version"] == INDEX_VERSION
        and isinstance(index["crc32_of_sums"], int)
        and all(isinstance(text, str) for text in texts)
        and len(set(names)) == len(names) == len(index["speakers"])
        and lengths.shape == rms.shape == (len(names),)
        and bool((lengths > 0).all() and (rms > 0).all() and np.isfinite(rms).all())
        and index["offsets"] == (np.cumsum(lengths) - lengths).tolist()
    )
    if not is_whole:
        raise ValueError("the index of a pack has another form")
    return index | told


def _write_samples(recordings: Recordings, path: Path, log: Log) -> Written:
    """Decode on all cores and write in order.

    Plain writes, because a full disk is then an error and not a crash, as it is for a mapped file.
    """

    def decode(index: int) -> Decoded | UserError:
        try:
            return _decode(recordings, index)
        except UserError as error:
            return error

    done, stop, again = Written(), 0, ""
    began = said = time.monotonic()
    with path.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
        while stop < len(recordings):
            lot = _next_lot(recordings.lengths, stop)
            for index, decoded in zip(lot, pool.map(decode, lot), strict=True):
                try:
                    _write_one(file, decoded, index, recordings, done)
                except UserError as error:
                    file.seek(done.num_bytes)
                    file.truncate()
                    entries = done.left_out if isinstance(error, LeftOutError) else done.damaged
                    entries.append((recordings.names[index], str(error)))
            stop = lot.stop
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                log(again + _progress(recordings.lengths, stop, said - began))
                again = REWRITE if log is print and sys.stdout.isatty() else ""
    return done


def _next_lot(lengths: np.ndarray, start: int) -> range:
    """The next utterances to decode together, or one that is too long for memory alone."""
    total = np.cumsum(lengths[start : start + DECODED_AT_ONCE].astype(float))
    return range(start, start + max(1, int(np.searchsorted(total, SAMPLES_AT_ONCE, "right"))))


def _decode(recordings: Recordings, index: int) -> Decoded:
    """Bring an utterance into 16 bits; one that is too long for memory is read twice, in parts."""
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
    return Decoded(parts, [*notes, *levels.describe()])


def _write_one(
    file: BinaryIO,
    decoded: Decoded | UserError,
    index: int,
    recordings: Recordings,
    done: Written,
) -> None:
    """Write an utterance at the end of the samples; if that raises, `done` is as it was."""
    if isinstance(decoded, UserError):
        raise decoded
    crc32, squares, length, digest = done.crc32, 0, 0, hashlib.blake2b(digest_size=16)
    for part in decoded.parts:
        samples = part.astype("<i2")
        file.write(samples.data)
        crc32 = zlib.crc32(samples.data, crc32)
        digest.update(samples.data)
        squares, length = squares + sum_of_squares(samples), length + len(samples)
    name, promised = recordings.names[index], int(recordings.lengths[index])
    if not length:
        raise UserError(f"{name} has no samples")
    if not squares:
        raise LeftOutError(f"{name} is silent: all its samples are equal in 16 bits")
    first = done.first_with.setdefault(digest.digest(), name)
    if first != name:
        raise LeftOutError(f"{name} has the samples of {first}, of which it is a copy")
    if length < promised:
        what = f"kept, but {length:,} of {promised:,} samples decode: it is damaged or cut short"
        done.altered.append((name, what))
    done.altered.extend((name, note) for note in decoded.notes)
    done.kept.append(index)
    done.lengths.append(length)
    done.rms.append((squares / length) ** 0.5 / FULL_SCALE)
    done.num_bytes, done.crc32 = done.num_bytes + 2 * length, crc32


def _progress(lengths: np.ndarray, stop: int, seconds: float) -> str:
    """Return how far packing is that took seconds up to an utterance."""
    packed, left = int(lengths[:stop].sum()), int(lengths[stop:].sum())
    rate = packed / SAMPLE_RATE_HZ / seconds
    seconds_left = datetime.timedelta(seconds=round(seconds * left / max(packed, 1)))
    return (
        f"packed {stop:,} of {len(lengths):,} utterances ({stop / len(lengths):.0%}), "
        f"{rate:,.0f} x real time, {seconds_left} left"
    )
