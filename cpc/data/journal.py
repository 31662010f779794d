"""A half-written pack: a folder beside it, and a journal of what in that is whole."""

import fcntl
import glob
import json
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from cpc.data.skipped import Skipped
from cpc.files import file_crc32

DATA_NAME = "samples.int16"
#: What of a half-written pack is whole, a line for each lot of utterances.
JOURNAL_NAME = "journal.jsonl"
#: A half-written pack that nobody has written to for so long is of a process that was killed.
LEFTOVER_SECONDS = 3600


class Written(NamedTuple):
    """What the first `stop` utterances left."""

    stop: int
    num_bytes: int
    crc32: int
    kept: list[int]
    lengths: list[int]
    rms: list[float]
    digests: list[str]
    """Of the samples of each utterance."""
    damaged: list[Skipped]
    left_out: list[Skipped]
    """Utterances that are silent, or copies."""
    altered: list[Skipped]
    """Utterances that are kept incomplete or altered."""


@contextmanager
def part_folder(path: Path, fingerprint: str) -> Iterator[tuple[Path, TextIO]]:
    """A folder beside `path` for this call alone, and its journal, which is locked.

    It is that of a call for the same recordings that was killed, if there is one, else new.
    Whatever is left of it goes at the end, unless the user interrupts.
    """
    with ExitStack() as stack:
        part = _adopt(path, fingerprint, stack)
        if part is None:
            folder = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
            folder.mkdir(parents=True)
            journal = stack.enter_context((folder / JOURNAL_NAME).open("x+", encoding="utf-8"))
            with suppress(OSError):  # no locks on this file system: nobody adopts, then
                fcntl.flock(journal, fcntl.LOCK_EX)
            journal.write(json.dumps({"fingerprint": fingerprint}) + "\n")
            journal.flush()
            part = folder, journal
        folder, is_kept = part[0], False
        try:
            yield part
        except KeyboardInterrupt:
            is_kept = True
            raise
        finally:
            if not is_kept:
                shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder.with_name(f"{folder.name}-replaced"), ignore_errors=True)


def _adopt(path: Path, fingerprint: str, stack: ExitStack) -> tuple[Path, TextIO] | None:
    """What a call that has ended left of these recordings; what is old goes."""
    for folder in sorted(path.parent.glob(f"{glob.escape(path.name)}.part-*")):
        with suppress(OSError), ExitStack() as own:
            if (folder / JOURNAL_NAME).exists():
                journal = own.enter_context((folder / JOURNAL_NAME).open("r+", encoding="utf-8"))
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its maker lives
                (folder / JOURNAL_NAME).stat()  # raises if its maker has just finished
                if _journalled_fingerprint(journal) == fingerprint:
                    stack.push(own.pop_all())
                    return folder, journal
            samples = folder / DATA_NAME
            newest = (samples if samples.exists() else folder).stat().st_mtime
            if time.time() - newest > LEFTOVER_SECONDS:
                shutil.rmtree(folder)
    return None


def _journalled_fingerprint(journal: TextIO) -> str | None:
    with suppress(ValueError, LookupError, TypeError):
        return json.loads(journal.readline())["fingerprint"]
    return None


def read_journal(journal: TextIO, samples: Path) -> Written:
    """What an earlier call has written and is still there; the journal keeps that, and no more."""
    done = Written(0, 0, 0, [], [], [], [], [], [], [])
    journal.seek(0)
    journal.readline()  # the fingerprint
    end = journal.tell()
    with suppress(ValueError, TypeError):  # of what is no line of a journal
        while (line := journal.readline()).endswith("\n"):  # one that was cut short does not
            checksum, text = line.split(" ", 1)
            if int(checksum, 16) != zlib.crc32(text.encode()):
                break
            new = Written(*json.loads(text))
            if file_crc32(samples, done.num_bytes, new.num_bytes, done.crc32) != new.crc32:
                break
            done, end = add_lot(done, new), journal.tell()
    journal.seek(end)
    journal.truncate()
    return done


def write_lot(journal: TextIO, new: Written) -> None:
    """Add a line, its own checksum before it."""
    text = json.dumps(new) + "\n"
    journal.write(f"{zlib.crc32(text.encode()):08x} {text}")
    journal.flush()


def add_lot(done: Written, new: Written) -> Written:
    """All utterances up to `new.stop`."""
    return new._replace(
        kept=done.kept + new.kept,
        lengths=done.lengths + new.lengths,
        rms=done.rms + new.rms,
        digests=done.digests + new.digests,
        damaged=done.damaged + _pairs(new.damaged),
        left_out=done.left_out + _pairs(new.left_out),
        altered=done.altered + _pairs(new.altered),
    )


def _pairs(entries: list) -> list[Skipped]:
    return [(name, reason) for name, reason in entries]  # json has lists for tuples
