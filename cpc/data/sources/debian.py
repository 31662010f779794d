"""Debian packages as archives of data: fetched by apt without root, verified, unpacked.

Nothing is installed. apt checks signatures; this module checks size and sha256 again on every use,
because an archive in a cache may have been cut or changed since. Distributions rebuild packages,
so an archive that is not the known one counts as what apt verified when it was fetched.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cpc.data.cache import cache_dir
from cpc.data.log import Log
from cpc.files import file_sha256, locked, read_json, write_sealed
from cpc.types import UserError


class Package(NamedTuple):
    """A package of which one version is known."""

    name: str
    version: str
    size_bytes: int
    sha256: str


class Archive(NamedTuple):
    """A verified .deb file."""

    path: Path
    version: str
    sha256: str


def one_process(lock: Path, log: Log) -> AbstractContextManager[None]:
    """Let one process at a time prepare data, as far as `lock` may be written."""
    waiting = f"another process prepares the same data (it holds {lock}): waiting for it"
    return locked(lock, lambda: log(waiting))


@contextmanager
def preparing(what: str, cache: Path | None, lock: str, log: Log) -> Iterator[Path]:
    """Yield `cache`, `cache_dir()` if None, for one process at a time.

    Raises:
        UserError: it cannot be written.
    """
    cache = cache_dir() if cache is None else Path(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with one_process(cache / lock, log):
            yield cache
    except OSError as error:
        raise UserError(f"cannot prepare {what} in {cache}: {error}") from error


def find_archive(package: Package, folder: Path, log: Log) -> Archive | None:
    """The archive from an earlier fetch if it is there and whole; a damaged one is removed."""
    expected = _manifest(folder).get(package.name, _known(package))
    path = folder / expected["file"]
    if not path.is_file():
        return None
    if path.stat().st_size == expected["size"] and file_sha256(path) == expected["sha256"]:
        return Archive(path, expected["version"], expected["sha256"])
    log(f"{path.name} is damaged (size or sha256 differ): fetching it again")
    path.unlink()
    return None


def fetch_archives(packages: Sequence[Package], folder: Path, log: Log) -> list[Archive]:
    """The archives of `packages` in `folder`, from the cache or by `apt-get download`."""
    return [fetch_archive(package, folder, log) for package in packages]


def fetch_archive(package: Package, folder: Path, log: Log) -> Archive:
    """The archive of a package, as `fetch_archives` has it; raises as that."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = find_archive(package, folder, log)
    if archive is None:
        log(f"fetching {package.name} ({package.size_bytes / 1e6:.1f} MB)")
        archive = _fetch(package, folder, log)
    return archive


def unpack(archive: Archive, folder: Path) -> None:
    """Unpack a verified archive below `folder`, as `dpkg-deb -x` does."""
    _run(["dpkg-deb", "-x", str(archive.path), str(folder)], cwd=archive.path.parent)


def copy_licenses(unpacked: Path, folder: Path) -> None:
    """Copy the notices of unpacked packages into a new folder, a file per package."""
    folder.mkdir()
    for path in unpacked.glob("usr/share/doc/*/copyright"):
        shutil.copyfile(path, folder / f"{path.parent.name}.txt")


def _fetch(package: Package, folder: Path, log: Log) -> Archive:
    partial = folder / f"{package.name}.part"
    shutil.rmtree(partial, ignore_errors=True)  # an interrupted fetch
    partial.mkdir()
    _apt_download(package.name, partial)
    found = list(partial.glob(f"{package.name}_*.deb"))
    if len(found) != 1:
        raise UserError(f"apt-get download {package.name} left no archive: run it by hand to see")
    got = {
        "file": found[0].name,
        "version": found[0].name.split("_")[1].replace("%3a", ":"),
        "size": found[0].stat().st_size,
        "sha256": file_sha256(found[0]),
    }
    if got != _known(package):
        log(
            f"{got['file']} is another build than the known one; apt has verified it, so its "
            "size and sha256 are recorded beside it"
        )
    # The manifest comes first: a crash in between leaves an entry without a file, which is fetched.
    entries = _manifest(folder) | {package.name: got}
    write_sealed(folder / "manifest.json", entries)
    path = found[0].replace(folder / found[0].name)
    partial.rmdir()
    return Archive(path, got["version"], got["sha256"])


def _apt_download(name: str, folder: Path) -> None:
    """Run apt; when its lists do not know the package, with private lists, which need no root."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UserError("there is no apt-get or dpkg-deb on this machine to fetch packages with")
    download = ["apt-get", "-q", "download", name]
    done = _try(download, folder)
    if done.returncode and re.search(
        r"Unable to locate|no installation candidate|Can't select", done.stderr
    ):
        private = folder.parent.parent / "apt"
        for part in ("lists/partial", "archives/partial"):
            (private / part).mkdir(parents=True, exist_ok=True)
        options = ["-o", f"Dir::State::Lists={private}/lists", "-o", f"Dir::Cache={private}"]
        _run(["apt-get", *options, "-q", "update"], folder)
        done = _try([download[0], *options, *download[1:]], folder)
    if done.returncode:
        raise UserError(f"apt-get could not fetch {name}: {_last_line(done.stderr)}")


def _try(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def _run(command: list[str], cwd: Path) -> None:
    done = _try(command, cwd)
    if done.returncode:
        raise UserError(f"`{' '.join(command)}` failed: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    errors = [line for line in text.splitlines() if line.startswith(("E:", "Err"))]
    return (errors or text.splitlines() or ["no message"])[-1]


def _known(package: Package) -> dict:
    return {
        # As apt writes the epoch of a version.
        "file": f"{package.name}_{package.version.replace(':', '%3a')}_all.deb",
        "version": package.version,
        "size": package.size_bytes,
        "sha256": package.sha256,
    }


def _manifest(folder: Path) -> dict[str, dict]:
    """What apt verified when it fetched each archive: the truth for versions not known here.

    None where it is missing or is not what `_fetch` writes: archives of known versions verify
    without it, and a name that leads out of the folder would have another file removed.
    """
    try:
        entries = read_json(folder / "manifest.json")
        return entries if all(_is_entry(name, entry) for name, entry in entries.items()) else {}
    except (UserError, AttributeError):
        return {}


def _is_entry(name: str, entry: Any) -> bool:
    kinds = {"file": str, "version": str, "size": int, "sha256": str}
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())
        and re.fullmatch(re.escape(name) + r"_[\w.+~%:-]+\.deb", entry["file"]) is not None
    )
