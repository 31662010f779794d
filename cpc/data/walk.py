"""Files of users: which there are below a folder, and which may be opened."""

import os
import stat
import unicodedata
from pathlib import Path
from typing import NamedTuple

from cpc.files import RUN_LOCK, SWEEP_LOCK
from cpc.types import UserError


class Walk(NamedTuple):
    """What lies below a folder."""

    files: list[str]
    """Everything that is no folder, sorted: also what may not be opened."""
    unreadable: list[tuple[str, str]]
    """(folder, reason) of those that could not be looked into."""
    passed_over: list[tuple[str, str]]
    """(folder, reason) of links to one that was looked into already, and of directories of runs."""


def walk_files(root: str | Path) -> Walk:
    """All files below a folder, at any depth, behind links too, each folder once.

    Folders whose name begins with a dot are passed over: caches of editors and notebooks, and the
    `.git` in which DataLad keeps what its links name. So are directories of runs below `root`,
    which would read what they write. A folder is known by device and inode, so that links in a
    circle end. Real folders come before those behind links: a file has its own path, not that of a
    link to it.
    """
    found, seen = Walk([], [], []), set()
    folders, links = [str(root)], []
    while folders or links:
        if not folders:
            links.sort(reverse=True)
        folder = folders.pop() if folders else links.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116 (a million paths need not become objects)
            if (status.st_dev, status.st_ino) in seen:
                name = printable(folder)
                found.passed_over.append((name, f"{name} links to a folder that is read already"))
                continue
            seen.add((status.st_dev, status.st_ino))
            if len(seen) > 1 and is_of_runs(folder):
                name = printable(folder)
                found.passed_over.append((name, f"{name} is the directory of a run, and no data"))
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not is_folder(entry):
                        found.files.append(entry.path)
                    elif entry.name.startswith("."):
                        continue
                    elif entry.is_symlink():
                        links.append(entry.path)
                    else:
                        folders.append(entry.path)
        except OSError as error:
            name = printable(folder)
            found.unreadable.append((name, f"the folder {name} cannot be read: {error.strerror}"))
    for column in found:
        column.sort()
    return found


def is_of_runs(folder: str) -> bool:
    """Whether a folder is the directory of a run, or of a sweep of runs."""
    return any(os.path.lexists(f"{folder}/{name}") for name in (RUN_LOCK, SWEEP_LOCK))


def is_folder(entry: os.DirEntry) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, say: whoever opens it is told
        return False


def check_file(path: str | Path) -> None:
    """Check that a path is a regular file: fifos and devices are never opened, they may not end.

    Raises:
        UserError: it is not, or there is none.
    """
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is no file but a folder, fifo, socket or device: it is not opened")


def read_named(path: str | Path, what: str) -> str:
    """Return a text file that names recordings: without a mark of byte order, accents composed.

    Some editors write the mark, and macOS lists names with accents apart (NFD).

    Raises:
        UserError: it cannot be read; says what it should have been.
    """
    try:
        return same_name(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {what} {path}: {error}") from error


def same_name(text: str) -> str:
    """Return text in one of its ways to be written, so that equal names compare equal (NFC)."""
    return unicodedata.normalize("NFC", text)


def check_name(path: str | Path) -> None:
    """Check that a name can become an id in text files; libsndfile takes no other.

    Raises:
        UserError: the name is not valid UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{path} has a name that is not valid UTF-8: rename it") from None


def printable(text: str | Path) -> str:
    r"""One line that any file and terminal takes, also where a name is no text.

    >>> printable("grün" + chr(0xDCE9) + chr(10))
    'grün\\udce9\\n'
    """
    text = str(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
