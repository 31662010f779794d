"""The pack: all recordings decoded once into one memory-mapped int16 file."""

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
from jaxtyping import Int, UInt8, UInt32

from cpc.data.cache import Log
from cpc.data.pack_writing import (
    BLOCK_BYTES,
    DATA_NAME,
    INDEX_NAME,
    INDEX_VERSION,
    SUMS_NAME,
    parse_index,
    write_index,
    write_pack,
)
from cpc.data.recordings import SAMPLE_RATE_HZ, Recordings
from cpc.data.skipped import check_skipped
from cpc.data.sources.folder import read_folder
from cpc.data.walk import digest_files, walk_files
from cpc.files import part_folder, read_sealed, read_text, replace_folder
from cpc.types import UserError

#: Of what `read_folder` makes of a folder: headers are read anew after it has changed.
READ_VERSION = 4
#: The index of a pack in which damage was found: the next start packs anew.
DAMAGED_NAME = "index.damaged.json"
#: What a folder of recordings looked like when its pack was made.
LISTING_NAME = "listing.txt"


def pack(
    recordings: Recordings,
    path: str | Path,
    log: Log = print,
    *,
    max_skipped_fraction: float = 0.1,
) -> Recordings:
    """Return the recordings from a pack in folder `path`, made now unless it is there and current.

    `samples.int16` holds all utterances in a row, `samples.crc32` a checksum of each 64 KB of it,
    and `index.json`, which is sealed, the rest. An utterance that does not decode is left out and
    listed in `skipped`. The pack is made again when the recordings have changed or when it is
    damaged; it appears whole or not at all. Several processes may request the same pack at once:
    each writes its own, and the first finished stays.

    Utterances are brought into 16 bits here: a constant offset is subtracted, one that exceeds full
    scale is divided by its peak, both listed in `shortened`. One without sound, and one with the
    samples of another, whatever their names and formats, is left out and listed in `skipped`.

    Samples are checked as they are read, a block when a read first touches it; damage is a
    `UserError`, after which the same command packs again. That takes 0.4 s per GB, spread over a
    run (AMD EPYC, one of 2 cores), and nothing once all blocks have been read.

    Raises:
        UserError: more than `max_skipped_fraction` of the utterances do not decode; disk full.
    """
    path = Path(path)
    wanted = _fingerprint(recordings)
    index = _read_index(path)
    problem = _problem(index, wanted, path)
    if problem is not None and path.is_dir():
        log(f"{problem}: packing again")
    if index is None or problem is not None:
        try:
            return _make(recordings, wanted, path, log, max_skipped_fraction)
        except OSError as error:
            raise UserError(f"cannot write the pack {path}: {error}") from error
    check_skipped(index["damaged"], len(recordings), max_skipped_fraction, "recordings")
    told = {"skipped": [*recordings.skipped], "shortened": [*recordings.shortened]}
    if {**index, **told} != index:  # files that were not packed have come or gone
        index |= told
        with suppress(OSError):  # a cache that others share
            write_index(path, index)
    return _open(index, path, path)


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
    root = Path(os.path.abspath(root))  # noqa: PTH100 (as `read_folder`)
    listing = _list_folder(root, f"{READ_VERSION} {speaker_level} {max_skipped_fraction}")
    index = _read_index(path)
    if (
        index is not None
        and _read_listing(path) == f"{listing} {index['fingerprint']}"
        and _problem(index, index["fingerprint"], path) is None
    ):
        return _open(index, path, path)
    recordings = read_folder(root, speaker_level, max_skipped_fraction)
    packed = pack(recordings, path, log, max_skipped_fraction=max_skipped_fraction)
    with suppress(OSError):  # of a cache that others share
        (path / LISTING_NAME).write_text(f"{listing} {packed.fingerprint}", encoding="utf-8")
    return packed


def _make(
    recordings: Recordings, wanted: str, path: Path, log: Log, max_skipped_fraction: float
) -> Recordings:
    """Write a pack next to `path` and move it there, unless another process was faster."""
    hours = recordings.lengths.sum() / SAMPLE_RATE_HZ / 3600
    log(f"packing {len(recordings)} utterances, {hours:.2f} h, in {path}")
    with part_folder(path) as part:
        index = write_pack(recordings, wanted, part, log, max_skipped_fraction)
        # Opened before it is moved: the mapped file stays this one, whatever others do to `path`.
        made = _open(index, part, path)
        finished = _read_index(path)
        if finished is not None and _problem(finished, wanted, path) is None:
            return _open(finished, path, path)
        replace_folder(part, path)
        return made


def _open(index: dict, folder: Path, path: Path) -> Recordings:
    """Return the recordings of the pack in `folder`, which is `path` or becomes it."""
    data = folder / DATA_NAME
    samples = np.asarray(np.memmap(data, "<i2", "r"))  # a plain array is quicker to cut
    status, offsets = data.stat(), np.asarray(index["offsets"], np.int64)

    def complain(block: int) -> NoReturn:
        remedy = "run the same command again, which packs anew"
        try:
            if os.path.samestat((path / DATA_NAME).stat(), status):
                (path / INDEX_NAME).rename(path / DAMAGED_NAME)
        except FileNotFoundError:
            pass  # another thread, or process, was here before
        except OSError:  # a cache that others share
            remedy = "remove that folder, and run the same command again"
        raise UserError(
            f"the pack {path} is damaged (the checksum of block {block} of {DATA_NAME} is wrong): "
            f"{remedy}"
        )

    sums = _read_sums(index, folder)
    check = _make_block_check(samples.view(np.uint8), sums, complain)

    def read(position: int, start: int, stop: int) -> np.ndarray:
        begin, end = offsets[position] + start, offsets[position] + stop
        check(2 * begin[None], 2 * int(end - begin))
        return samples[begin:end].astype(np.int16)

    def gather(positions: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
        begins = offsets[positions] + starts
        check(2 * begins, 2 * length)
        windows = np.lib.stride_tricks.sliding_window_view(samples, length)
        return windows[begins].astype(np.int16, copy=False)

    return Recordings(
        names=tuple(index["names"]),
        speakers=tuple(index["speakers"]),
        lengths=np.asarray(index["lengths"], np.int64),
        read=read,
        gather=gather,
        rms=np.asarray(index["rms"], np.float32),
        skipped=(*index["skipped"], *index["damaged"], *index["left_out"]),
        shortened=(*index["shortened"], *index["altered"]),
        fingerprint=index["fingerprint"],
    )


def _make_block_check(
    content: UInt8[np.ndarray, " bytes"],
    sums: UInt32[np.ndarray, " blocks"],
    complain: Callable[[int], NoReturn],
) -> Callable[[Int[np.ndarray, " n"], int], None]:
    """Return check(begins, num_bytes), which compares the blocks that reads touch with their sums.

    A block is summed once; two threads that meet in it both do, which harms nothing. `complain`
    gets the number of a block that has changed.
    """
    unchecked = np.ones(len(sums), bool)

    def check(begins: np.ndarray, num_bytes: int) -> None:
        if not num_bytes:
            return
        first, last = begins // BLOCK_BYTES, (begins + num_bytes - 1) // BLOCK_BYTES
        span = np.arange(num_bytes // BLOCK_BYTES + 2)
        touched = np.minimum(first[:, None] + span, last[:, None])
        for block in np.unique(touched[unchecked[touched]]).tolist():
            part = content[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            if zlib.crc32(part.data) != sums[block]:
                complain(block)
            unchecked[block] = False

    return check


def _read_index(path: Path) -> dict | None:
    """Return the index of a pack, or None if there is none of this version and form."""
    with suppress(UserError, ValueError, TypeError, KeyError, OverflowError):
        return parse_index(read_sealed(path / INDEX_NAME))
    return None


def _read_sums(index: dict, folder: Path) -> np.ndarray:
    """Return the checksums of the blocks; none if the index was made with others."""
    with suppress(OSError):
        content = (folder / SUMS_NAME).read_bytes()
        if zlib.crc32(content) == index["crc32_of_sums"]:
            return np.frombuffer(content, "<u4")
    return np.zeros(0, "<u4")


def _problem(index: dict | None, wanted: str, path: Path) -> str | None:
    """Return why a pack cannot be used, None if it can."""
    if index is None:
        return f"the pack {path} is damaged, or of another version"
    if index["fingerprint"] != wanted:
        return f"the recordings have changed since the pack {path} was made"
    data = path / DATA_NAME
    if not data.exists() or data.stat().st_size != 2 * sum(index["lengths"]):
        return f"the pack {path} is cut short"
    if len(_read_sums(index, path)) != -(-data.stat().st_size // BLOCK_BYTES):
        return f"the pack {path} is damaged (its checksums are missing or wrong)"
    return None


def _list_folder(root: Path, options: str) -> str:
    """Return a digest of options and of the name, size and time of change of all files."""
    walk = walk_files(root)
    speakers = root.parent / "SPEAKERS.TXT"  # which names the speakers of a subset
    return digest_files([speakers, *walk.files], f"{options} {walk.unreadable!r}")


def _read_listing(path: Path) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        return read_text(path / LISTING_NAME)
    return None


def _fingerprint(recordings: Recordings) -> str:
    digest = hashlib.sha256(f"{INDEX_VERSION} {recordings.fingerprint}".encode())
    for column in (recordings.names, recordings.speakers, recordings.lengths.tolist()):
        digest.update(json.dumps(column).encode())
    return digest.hexdigest()
