"""Debian packages as data archives, which apt fetches without root or installation.

apt checks signatures. The sha256 is checked again on every use, as cached archives may be truncated
or changed. Distributions rebuild packages, so an archive that differs from the known version is
checked against the sha256 recorded when apt verified it.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cpc.data.cache import Log
from cpc.files import file_sha256, read_sealed, replacing_folder, write_sealed, write_text
from cpc.types import UserError

#: Timeout for each run of an external program.
TIMEOUT_SECONDS = 3600


class Package(NamedTuple):
    """A known version of a Debian package."""

    name: str
    version: str
    size_bytes: int
    sha256: str


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
    """Yield a folder of unpacked packages and a new folder that becomes `folder` at the end.

    After the caller fills it, the packages' licenses, `CREDITS.txt` and a stamp are added. `others`
    contains further sha256 by name, which the stamp lists next to those of the packages. If a fetch
    fails, the error ends with `advice`, which names other sources.
    """
    unpack_all = tempfile.TemporaryDirectory(dir=folder.parent, prefix="unpacked-")
    with unpack_all as name, replacing_folder(folder) as part:
        unpacked = Path(name)
        try:
            sums = fetch_and_unpack(packages, folder.parent / "debs", unpacked, log)
        except UserError as error:
            raise UserError(f"cannot fetch {what}: {error} ({advice})") from error
        yield unpacked, part
        (part / "licenses").mkdir()
        for path in unpacked.glob("usr/share/doc/*/copyright"):
            shutil.copyfile(path, part / "licenses" / f"{path.parent.name}.txt")
        named = [*others.items(), *((path.name, sha256) for path, sha256 in sums)]
        lines = [*credits, "", *(f"{name} sha256 {sha256}" for name, sha256 in named)]
        write_text(part / "CREDITS.txt", "".join(f"{line}\n" for line in lines))
        made_from = {one.name: sha256 for one, (_, sha256) in zip(packages, sums, strict=True)}
        write_sealed(part / "stamp.json", {"archives": {**others, **made_from}})
        os.sync()  # so that a power failure cannot leave empty files below a valid stamp
    log(f"{what}: prepared in {folder}")


def read_stamp(folder: Path) -> dict[str, str]:
    """Return the sha256 of each source in a folder's stamp, or {} if the stamp is unreadable."""
    try:
        return read_sealed(folder / "stamp.json")["archives"]
    except (UserError, LookupError):  # missing, damaged, or foreign
        return {}


def fetch_and_unpack(
    packages: Sequence[Package], folder: Path, unpacked: Path, log: Log
) -> list[tuple[Path, str]]:
    """Fetch and unpack packages in parallel, and return the path and sha256 of each archive."""
    archives, unpackings = {}, []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # dpkg-deb runs as a separate process
        for package in sorted(packages, key=lambda package: -package.size_bytes):
            archives[package] = fetch_archive(package, folder, log)
            unpackings.append(pool.submit(unpack, archives[package][0], unpacked))
        for unpacking in unpackings:
            unpacking.result()
    return [archives[package] for package in packages]


def fetch_archive(package: Package, folder: Path, log: Log) -> tuple[Path, str]:
    """Return the archive of a package and its sha256, downloading a missing or damaged archive."""
    folder.mkdir(parents=True, exist_ok=True)
    if archive := find_archive(package, folder, log):
        return archive
    log(f"fetching {package.name} ({package.size_bytes / 1e6:.1f} MB)")
    partial = folder / f"{package.name}.part"
    shutil.rmtree(partial, ignore_errors=True)  # left by an interrupted fetch
    partial.mkdir()
    _apt_download(package.name, partial)
    found = list(partial.glob(f"{package.name}_*.deb"))
    if len(found) != 1:
        raise UserError(f"apt-get download {package.name} gave {len(found)} files: run it by hand")
    got = {"file": found[0].name, "sha256": file_sha256(found[0])}
    if got != _known(package):
        log(f"{got['file']} differs from the known build: recording its sha256, verified by apt")
    # The entry is written first. After a crash, an entry without a file is fetched again.
    write_sealed(folder / "manifest.json", _manifest(folder) | {package.name: got})
    path = found[0].replace(folder / found[0].name)
    partial.rmdir()
    return path, got["sha256"]


def find_archive(package: Package, folder: Path, log: Log) -> tuple[Path, str] | None:
    """Return the archive and sha256 of an earlier fetch, after checking the archive.

    A missing archive yields None. A damaged archive is also removed.
    """
    expected = _manifest(folder).get(package.name, _known(package))
    path = folder / expected["file"]
    if not path.is_file():
        return None
    if file_sha256(path) == expected["sha256"]:
        return path, expected["sha256"]
    log(f"{path.name} is damaged (its sha256 differs): fetching it again")
    path.unlink()
    return None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a verified archive below `folder`, as `dpkg-deb -x` does."""
    run_program(["dpkg-deb", "-x", str(archive), str(folder)], folder)


def _apt_download(name: str, folder: Path) -> None:
    """Download a package with apt, using private package lists if the system's lists lack it.

    Updating private lists does not require root.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UserError(f"apt-get and dpkg-deb are needed to fetch {name}: use Debian or Ubuntu")
    try:
        run_program(["apt-get", "-q", "download", name], folder)
    except UserError as error:
        if not re.search("Unable to locate|no installation candidate|Can't select", str(error)):
            raise
        private = folder.parent.parent / "apt"
        for part in ("lists/partial", "archives/partial"):
            (private / part).mkdir(parents=True, exist_ok=True)
        apt = ["apt-get", "-o", f"Dir::State::Lists={private}/lists", "-o", f"Dir::Cache={private}"]
        run_program([*apt, "-q", "update"], folder)
        run_program([*apt, "-q", "download", name], folder)


def run_program(command: list[str], cwd: Path, variables: Mapping[str, str] = {}) -> None:
    """Run a program non-interactively with English messages; raise UserError if it fails."""
    environment = {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **variables}
    how = {"capture_output": True, "text": True, "timeout": TIMEOUT_SECONDS}
    try:
        subprocess.run(command, cwd=cwd, env=os.environ | environment, check=True, **how)
    except (OSError, subprocess.SubprocessError) as error:
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        lines = output.splitlines() or [str(error)]
        reason = next((line for line in lines if re.search(r"^E:|(?i:err)", line)), lines[-1])
        raise UserError(f"`{' '.join(command[:4])}` failed: {reason}") from error


def _known(package: Package) -> dict:
    return {
        # apt writes the colon after an epoch as %3a.
        "file": f"{package.name}_{package.version.replace(':', '%3a')}_all.deb",
        "sha256": package.sha256,
    }


def _manifest(folder: Path) -> dict[str, dict]:
    """Return the file and sha256 of each archive that apt has verified, by package.

    A missing or damaged manifest yields {}, so that only known versions can be verified.
    """
    try:
        return read_sealed(folder / "manifest.json")
    except UserError:
        return {}
