"""Debian packages as archives of data: fetched by apt without root, verified, unpacked.

Nothing is installed. apt checks signatures; this module checks size and sha256 again on every use,
because an archive in a cache may have been cut or changed since. Distributions rebuild packages,
so an archive that is not the known one counts as what apt verified when it was fetched.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from cpc.data.cache import Log, cache_dir
from cpc.files import (
    file_sha256,
    locked,
    read_json,
    read_sealed,
    replacing_folder,
    write_sealed,
    write_text,
)
from cpc.types import UserError

#: Seconds that a program may take.
PATIENCE_SECONDS = 3600


class Package(NamedTuple):
    """A package of which one version is known."""

    name: str
    version: str
    size_bytes: int
    sha256: str


class Archive(NamedTuple):
    """A verified .deb file."""

    path: Path
    sha256: str


def one_process(lock: Path, log: Log) -> AbstractContextManager[None]:
    """Let one process at a time prepare data, as far as `lock` may be written."""
    waiting = f"another process prepares the same data (it holds {lock}): waiting for it"
    return locked(lock, lambda: log(waiting))


@contextmanager
def preparing(what: str, cache: Path | None, lock: str, log: Log) -> Iterator[Path]:
    """Yield `cache`, `cache_dir()` if None, for one process at a time."""
    cache = cache_dir() if cache is None else Path(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with one_process(cache / lock, log):
            yield cache
    except OSError as error:
        raise UserError(f"cannot prepare {what} in {cache}: {error}") from error


@contextmanager
def laying_out(
    what: str,
    folder: Path,
    packages: Sequence[Package],
    credits: Sequence[str],
    others: Mapping[str, str],
    advice: str,
    log: Log,
) -> Iterator[tuple[Path, Path]]:
    """Yield the unpacked packages and a new folder, which becomes `folder` in the cache.

    It gets the packages' licenses, `CREDITS.txt` and a stamp of what it was made from, which are
    the packages and `others`, by name their sha256. `advice` names other sources.
    """
    unpack_all = tempfile.TemporaryDirectory(dir=folder.parent, prefix="unpacked-")
    with unpack_all as name, replacing_folder(folder) as part:
        unpacked = Path(name)
        try:
            archives = fetch_and_unpack(packages, folder.parent / "debs", unpacked, log)
        except UserError as error:
            raise UserError(f"cannot fetch {what}: {error} ({advice})") from error
        yield unpacked, part
        copy_licenses(unpacked, part / "licenses")
        sums = dict(others) | {archive.path.name: archive.sha256 for archive in archives}
        lines = [*credits, "", *(f"{one} sha256 {total}" for one, total in sums.items())]
        write_text(part / "CREDITS.txt", "".join(f"{line}\n" for line in lines))
        made_from = {one.name: own.sha256 for one, own in zip(packages, archives, strict=True)}
        write_sealed(part / "stamp.json", {"archives": {**others, **made_from}})
    log(f"{what}: prepared in {folder}")


def read_stamp(folder: Path) -> dict[str, str]:
    """Return package -> sha256 that a complete folder was made from; else nothing."""
    try:
        return dict(read_json(folder / "stamp.json")["archives"])
    except (UserError, LookupError, TypeError, ValueError):  # missing, damaged, or another's
        return {}


def fetch_and_unpack(
    packages: Sequence[Package], folder: Path, unpacked: Path, log: Log
) -> list[Archive]:
    """Return the archives of packages in `folder`; each is unpacked while others come."""
    archives, unpackings = {}, []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # dpkg-deb is a process of its own
        for package in sorted(packages, key=lambda package: -package.size_bytes):
            archives[package] = fetch_archive(package, folder, log)
            unpackings.append(pool.submit(unpack, archives[package], unpacked))
        for unpacking in unpackings:
            unpacking.result()
    return [archives[package] for package in packages]


def fetch_archive(package: Package, folder: Path, log: Log) -> Archive:
    """Return the archive of a package, from an earlier fetch or by `apt-get download`."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = find_archive(package, folder, log)
    if archive is not None:
        return archive
    log(f"fetching {package.name} ({package.size_bytes / 1e6:.1f} MB)")
    partial = folder / f"{package.name}.part"
    shutil.rmtree(partial, ignore_errors=True)  # an interrupted fetch
    partial.mkdir()
    _apt_download(package.name, partial)
    found = list(partial.glob(f"{package.name}_*.deb"))
    if len(found) != 1:
        raise UserError(f"apt-get download {package.name} left no archive: run it by hand to see")
    got = {"file": found[0].name, "size": found[0].stat().st_size, "sha256": file_sha256(found[0])}
    if got != _known(package):
        log(
            f"{got['file']} is another build than the known one; apt has verified it, so its "
            "size and sha256 are recorded beside it"
        )
    # The manifest comes first: a crash in between leaves an entry without a file, which is fetched.
    write_sealed(folder / "manifest.json", _manifest(folder) | {package.name: got})
    path = found[0].replace(folder / found[0].name)
    partial.rmdir()
    return Archive(path, got["sha256"])


def find_archive(package: Package, folder: Path, log: Log) -> Archive | None:
    """Return the archive of an earlier fetch if it is whole; a damaged one is removed."""
    expected = _manifest(folder).get(package.name, _known(package))
    path = folder / expected["file"]
    if not path.is_file():
        return None
    if path.stat().st_size == expected["size"] and file_sha256(path) == expected["sha256"]:
        return Archive(path, expected["sha256"])
    log(f"{path.name} is damaged (size or sha256 differ): fetching it again")
    path.unlink()
    return None


def unpack(archive: Archive, folder: Path) -> None:
    """Unpack a verified archive below `folder`, as `dpkg-deb -x` does."""
    run_program(["dpkg-deb", "-x", str(archive.path), str(folder)], folder)


def copy_licenses(unpacked: Path, folder: Path) -> None:
    """Copy the notices of unpacked packages into a new folder, a file per package."""
    folder.mkdir()
    for path in unpacked.glob("usr/share/doc/*/copyright"):
        shutil.copyfile(path, folder / f"{path.parent.name}.txt")


def _apt_download(name: str, folder: Path) -> None:
    """Run apt; when its lists do not know the package, with private lists, which need no root."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UserError("there is no apt-get or dpkg-deb on this machine to fetch packages with")
    done = try_program(["apt-get", "-q", "download", name], folder)
    unknown = r"Unable to locate|no installation candidate|Can't select"
    if done.returncode and re.search(unknown, done.stderr):
        private = folder.parent.parent / "apt"
        for part in ("lists/partial", "archives/partial"):
            (private / part).mkdir(parents=True, exist_ok=True)
        apt = ["apt-get", "-o", f"Dir::State::Lists={private}/lists", "-o", f"Dir::Cache={private}"]
        run_program([*apt, "-q", "update"], folder)
        done = try_program([*apt, "-q", "download", name], folder)
    if done.returncode:
        raise UserError(f"apt-get could not fetch {name}: {find_error(done)}")


def try_program(
    command: list[str], cwd: Path, variables: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run a program without questions and in English, and return how it ended."""
    environment = {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **variables}
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"`{' '.join(command)}` failed: {error}") from error


def find_error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the first line of a program's messages that reports an error."""
    lines = done.stderr.splitlines() or ["no message"]
    return next((line for line in lines if re.search(r"^E:|(?i:err)", line)), lines[-1])


def run_program(command: list[str], cwd: Path, variables: Mapping[str, str] = {}) -> None:
    """Run a program as `try_program` does; UserError if it fails."""
    done = try_program(command, cwd, variables)
    if done.returncode:
        raise UserError(f"`{' '.join(command[:4])}` failed: {find_error(done)}")


def _known(package: Package) -> dict:
    return {
        # As apt writes the epoch of a version.
        "file": f"{package.name}_{package.version.replace(':', '%3a')}_all.deb",
        "size": package.size_bytes,
        "sha256": package.sha256,
    }


def _manifest(folder: Path) -> dict[str, dict]:
    """Return what apt verified when it fetched each archive: the truth for versions not known here.

    Empty if it is missing or damaged: archives of known versions verify without it.
    """
    try:
        return read_sealed(folder / "manifest.json")
    except UserError:
        return {}
