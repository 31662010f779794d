"""Discovery of user files: walk folders, check paths, and list skipped files with reasons."""

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

#: A name and a one-sentence reason. Each pair becomes a line of skipped.txt.
Skipped: TypeAlias = tuple[str, str]
#: Number of names listed as examples next to a count.
NUM_EXAMPLES = 3


class Found(NamedTuple):
    """Files found below a folder, and the entries that were left out."""

    files: list[Any]  # sorted: paths from `find_data`, strings from `walk_files`
    unreadable: list[Skipped]  # (folder, reason) of folders that cannot be listed
    left_out: list[Skipped]  # (name, reason) of files and folders that are not read


#: Suffixes of documents, checksums, settings, thumbnails and programs.
DOCUMENTS = frozenset({
    ".bib", ".cfg", ".css", ".db", ".doc", ".docx", ".htm", ".html", ".ini", ".ipynb", ".js",
    ".log", ".m", ".md", ".md5", ".odt", ".pdf", ".py", ".rst", ".rtf", ".sh", ".sha1", ".sha256",
    ".sha512", ".tex", ".toml", ".yaml", ".yml",
})  # fmt: skip
#: Suffixes of lists, tables and labels.
LISTS = frozenset({
    ".csv", ".json", ".jsonl", ".list", ".lst", ".scp", ".tsv", ".txt", ".xls", ".xlsx", ".xml",
})  # fmt: skip
#: Stems, in lower case, of files that accompany any kind of data.
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
    """Find the files below a folder that have one of `endings`, and report unsupported files.

    All other files are in `left_out` with a reason, except for ignored files. Hidden files, files
    named like a licence or read-me (`COMPANIONS`), and files that end in one of `others` are
    ignored.

    Args:
        root: the folder.
        endings, others: suffixes in lower case, with the dot.
        advice: text on how to fix another format. It may contain {name}, {stem} and {endings}.
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
        left_out.append((name, f"{name} is in an unsupported format: {why}"))
    return Found(sorted(files), walk.unreadable, left_out + walk.left_out)


def require_data(root: Path, what: str, endings: Collection[str], *options: Any) -> Found:
    """Find files as `find_data` does, and raise UserError if there are none."""
    if not root.is_dir():
        raise UserError(f"{printable(root)} is not a folder: pass a folder of {what}")
    found = find_data(root, endings, *options)
    if not found.files:
        reasons = [reason for _, reason in (*found.unreadable, *found.left_out)]
        where = "; ".join(["at any depth", *reasons[:3]])
        raise UserError(
            f"no {what} in {printable(root)}: looked for {list_endings(endings)} files {where}"
        )
    return found


def list_endings(endings: Iterable[str]) -> str:
    """Join file endings without their dots, such as "flac, wav"."""
    return ", ".join(sorted(ending[1:] for ending in endings))


def walk_files(root: str | Path) -> Found:
    """Find all files below a folder, following links but visiting each folder once.

    Folders whose name begins with a dot are skipped. Run directories are also skipped, since a run
    would read its own outputs. Folders are visited before links to them, so that a file is listed
    under its real path.
    """
    found, seen, starts = Found([], [], []), set(), [str(root)]

    def report(error: OSError) -> None:
        name = printable(error.filename)
        found.unreadable.append((name, f"folder {name} cannot be read: {error.strerror}"))

    while starts:
        for folder, folders, files in os.walk(starts.pop(0), onerror=report):
            folders[:] = [name for name in folders if not name.startswith(".")]
            try:
                status = os.stat(folder)  # noqa: PTH116 (a million paths need not become objects)
            except OSError as error:  # the folder was removed in the meantime
                report(error)
                continue
            identity, reason = (status.st_dev, status.st_ino), ""
            if identity in seen:
                reason = "links to a folder that is already read"
            elif seen and is_of_runs(folder):  # the root comes first
                reason = "is a run directory, not data"
            seen.add(identity)
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


def is_of_runs(folder: str) -> bool:
    """Return whether a folder is the directory of a run or of a sweep."""
    return any(os.path.lexists(f"{folder}/{name}") for name in (RUN_LOCK, SWEEP_LOCK))


def digest_files(paths: Iterable[str | Path], settings: str = "") -> str:
    """Return a digest of `settings` and of the names, sizes and modification times of files."""
    digest = hashlib.sha256(settings.encode())
    for path in paths:
        digest.update(os.fsencode(path))
        with suppress(OSError):  # a dangling link, which cannot be read either
            status = os.stat(path)  # noqa: PTH116 (a million paths need not become objects)
            digest.update(f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def check_file(path: str | Path) -> None:
    """Check that a path is a regular file, since reading a fifo or device might never end."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise UserError(f"{printable(path)} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{printable(path)} is not a regular file (a folder or fifo?): give a file")


def read_named(path: str | Path, what: str) -> str:
    """Read a text file of names, dropping a byte order mark and normalizing to NFC."""
    check_file(path)
    try:
        return same_name(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {what} {path}: {error}") from error


def same_name(text: str) -> str:
    """Normalize a name to NFC, so that composed and decomposed accents compare equal."""
    return unicodedata.normalize("NFC", text)


def check_name(path: str | Path) -> None:
    """Check that a name is valid UTF-8, which text files and libsndfile require."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{path} has a name that is not valid UTF-8: rename the file") from None


def printable(text: str | Path) -> str:
    r"""Escape all characters of a name that are not printable, such as invalid UTF-8.

    >>> printable("grün" + chr(0xDCE9) + chr(10))
    'grün\\udce9\\n'
    """
    text = str(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def find_copies(digests: Iterable[Hashable | None]) -> dict[int, int]:
    """Map the index of each copy to the first index with equal content.

    The digests are of decoded contents. An entry with the digest None, such as a damaged entry, is
    never a copy.

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
    """Raise UserError if more than `max_fraction` of all entries are skipped."""
    if len(skipped) > max_fraction * total:
        first = "; ".join(reason for _, reason in skipped[:3])
        share = f"{len(skipped)} of {total} {what}"
        raise UserError(f"{share} cannot be used, more than {max_fraction:.0%}: {first}")


def count_names(entries: Sequence[Skipped], what: str) -> str:
    """Format the number of entries and the first names as examples, for the console.

    >>> count_names([(f"data/{name}.wav", "is empty") for name in "abcd"], "files skipped")
    '4 files skipped (a.wav, b.wav, c.wav, ...)'
    >>> count_names([], "files skipped")
    '0 files skipped'
    """
    names = [name.rstrip("/").rpartition("/")[2] for name, _ in entries[:NUM_EXAMPLES]]
    more = ["..."] * (len(entries) > NUM_EXAMPLES)
    examples = f" ({', '.join(names + more)})" if names else ""
    return f"{len(entries):,} {what}{examples}"
