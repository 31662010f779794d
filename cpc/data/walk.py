"""Files of users: which there are below a folder, which may be opened, which are left out."""

import hashlib
import os
import stat
import unicodedata
from collections.abc import Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cpc.files import RUN_LOCK, SWEEP_LOCK
from cpc.types import UserError

#: Name, and the reason in one sentence; each becomes a line of skipped.txt.
Skipped: TypeAlias = tuple[str, str]
#: Names that a count of entries gives as examples.
NUM_EXAMPLES = 3


class Found(NamedTuple):
    """The files below a folder, by what becomes of them."""

    files: list[Any]  # sorted: paths of `find_data`, texts of `walk_files`
    unreadable: list[Skipped]  # (folder, reason) of those that cannot be listed: data may be there
    left_out: list[Skipped]  # (name, reason) of files that are not read and of folders passed over


#: Endings of prose about data, of checksums, settings, thumbnails and programs.
DOCUMENTS = frozenset({
    ".bib", ".cfg", ".css", ".db", ".doc", ".docx", ".htm", ".html", ".ini", ".ipynb", ".js",
    ".log", ".m", ".md", ".md5", ".odt", ".pdf", ".py", ".rst", ".rtf", ".sh", ".sha1", ".sha256",
    ".sha512", ".tex", ".toml", ".yaml", ".yml",
})  # fmt: skip
#: Endings of lists, tables and labels.
LISTS = frozenset({
    ".csv", ".json", ".jsonl", ".list", ".lst", ".scp", ".tsv", ".txt", ".xls", ".xlsx", ".xml",
})  # fmt: skip
#: Names, without endings and in lower case, of files that accompany data of any kind.
COMPANIONS = frozenset({
    "authors", "changelog", "changes", "checksums", "citation", "contributing", "contributors",
    "copying", "copyright", "dockerfile", "licence", "license", "makefile", "md5sum", "md5sums",
    "notice", "readme", "sha1sums", "sha256sums", "version",
})  # fmt: skip


def find_data(
    root: str | Path,
    endings: Collection[str],
    others: Collection[str] = DOCUMENTS,
    advice: str = "convert it to one of {endings}",
) -> Found:
    """Return the files below a folder that a kind of data reads, and account for all others.

    Every file is either in `files`, or listed in `left_out` with a reason, or known to be something
    else: hidden, named like a licence or read-me (`COMPANIONS`), or with one of the endings
    `others`.

    Endings are in lower case, with the dot. `advice` says what to do with a file of another format;
    it may name {name}, {stem} and {endings}.
    """
    walk = walk_files(root)
    paths = [Path(file) for file in walk.files if not file.rpartition("/")[2].startswith(".")]
    files = [path for path in paths if path.suffix.lower() in endings]
    read = {path.with_suffix(""): path.name for path in files}
    known, prose, left_out = {*endings, *others}, {"", *DOCUMENTS, *LISTS}, []
    for path in paths:
        ending = path.suffix.lower()
        if ending in known or (ending in prose and path.stem.lower() in COMPANIONS):
            continue
        name, other = printable(path), read.get(path.with_suffix(""))
        fix = advice.format(
            name=printable(path.name), stem=printable(path.stem), endings=list_endings(endings)
        )
        why = f"{printable(other)} is read instead" if other else fix
        left_out.append((name, f"{name} has a format that is not read: {why}"))
    return Found(sorted(files), walk.unreadable, left_out + walk.left_out)


def list_endings(endings: Iterable[str]) -> str:
    """Return endings as words: "flac, wav"."""
    return ", ".join(sorted(ending[1:] for ending in endings))


def walk_files(root: str | Path) -> Found:
    """Return all files below a folder, at any depth, also behind links, each folder once.

    Folders whose name begins with a dot are passed over, and directories of runs, which would read
    what they write. Links in a circle end. Real folders come before those behind links: a file has
    its own path, not that of a link to it.
    """
    found, seen, starts = Found([], [], []), set(), [str(root)]

    def report(error: OSError) -> None:
        name = printable(error.filename)
        found.unreadable.append((name, f"the folder {name} cannot be read: {error.strerror}"))

    while starts:
        for folder, folders, files in os.walk(starts.pop(0), onerror=report):
            folders[:] = [name for name in folders if not name.startswith(".")]
            try:
                reason = find_reason(folder, seen)
            except OSError as error:  # it has just been removed
                report(error)
                continue
            if reason:
                folders.clear()
                name = printable(folder)
                found.left_out.append((name, f"{name} {reason}"))
                continue
            found.files.extend(f"{folder}/{name}" for name in files)
            paths = (f"{folder}/{name}" for name in folders)
            starts.extend(path for path in paths if Path(path).is_symlink())
        starts.sort()
    for column in found:
        column.sort()
    return found


def find_reason(folder: str, seen: set[tuple[int, int]]) -> str:
    """Return why a folder is passed over, or "" after adding it to those `seen`, the root first."""
    status = os.stat(folder)  # noqa: PTH116 (a million paths need not become objects)
    if (status.st_dev, status.st_ino) in seen:
        return "links to a folder that is read already"
    seen.add((status.st_dev, status.st_ino))
    is_below_root = len(seen) > 1
    return "is the directory of a run, and no data" if is_below_root and is_of_runs(folder) else ""


def is_of_runs(folder: str) -> bool:
    """Whether a folder is the directory of a run, or of a sweep of runs."""
    return any(os.path.lexists(f"{folder}/{name}") for name in (RUN_LOCK, SWEEP_LOCK))


def digest_files(paths: Iterable[str | Path], settings: str = "") -> str:
    """Return a digest of settings and of the names, sizes and times of change of files."""
    digest = hashlib.sha256(settings.encode())
    for path in paths:
        digest.update(os.fsencode(path))
        with suppress(OSError):  # a link to nowhere, which cannot be read either
            status = os.stat(path)  # noqa: PTH116 (a million paths need not become objects)
            digest.update(f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def check_file(path: str | Path) -> None:
    """Check that a path is a regular file: fifos and devices are never opened, they may not end."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise UserError(f"{printable(path)} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise UserError(
            f"{printable(path)} is no file but a folder, fifo, socket or device: it is not opened"
        )


def read_named(path: str | Path, what: str) -> str:
    """Return a text file that names recordings: without a mark of byte order, accents composed."""
    check_file(path)
    try:
        return same_name(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {what} {path}: {error}") from error


def same_name(text: str) -> str:
    """Return text in one of its ways to be written, so that equal names compare equal (NFC)."""
    return unicodedata.normalize("NFC", text)


def check_name(path: str | Path) -> None:
    """Check that a name can become an id in text files; libsndfile takes no other."""
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


def find_copies(digests: Iterable[Hashable | None]) -> dict[int, int]:
    """Return the index of each copy, mapped to the index of the first entry of equal content.

    For data of any kind: give a digest of each entry's decoded content, in the order in which the
    entries are kept, and leave the copies out before splitting, listed in `skipped`. An entry whose
    digest is None, such as a damaged one, has no copies.

    >>> find_copies(["a", "b", None, "a", "b", "a", None])
    {3: 0, 4: 1, 5: 0}
    """
    first: dict[Hashable, int] = {}
    copies = {}
    for index, digest in enumerate(digests):
        if digest is not None and first.setdefault(digest, index) != index:
            copies[index] = first[digest]
    return copies


def check_skipped(skipped: Sequence[Skipped], total: int, max_fraction: float, what: str) -> None:
    """Check that not too large a share is skipped for the rest to be trusted."""
    if len(skipped) > max_fraction * total:
        first = "; ".join(reason for _, reason in skipped[:3])
        raise UserError(
            f"{len(skipped)} of {total} {what} cannot be used, more than {max_fraction:.0%}: "
            f"{first}"
        )


def count_names(entries: Sequence[Skipped], what: str) -> str:
    """Return a count of entries with their first names, for a console's line about data.

    >>> count_names([(f"data/{name}.wav", "is empty") for name in "abcd"], "files skipped")
    '4 files skipped (a.wav, b.wav, c.wav, ...)'
    >>> count_names([], "files skipped")
    '0 files skipped'
    """
    names = [name.rstrip("/").rpartition("/")[2] for name, _ in entries[:NUM_EXAMPLES]]
    more = ["..."] * (len(entries) > NUM_EXAMPLES)
    examples = f" ({', '.join(names + more)})" if names else ""
    return f"{len(entries):,} {what}{examples}"
