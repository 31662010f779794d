"""Archives from package registries, fetched by npm or pip without installing them.

No code in an archive is executed. npm ignores scripts. pip would run setup.py to read the name of a
source archive, and therefore gets a build backend that returns this name. Archives are verified by
sha256 and read member by member, so that paths in them are never extracted.
"""

import importlib.util
import io
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from cpc.data.cache import Log
from cpc.data.sources.debian import run_program
from cpc.files import file_sha256
from cpc.types import UserError

#: Source code of a build backend that only returns the name and version.
BACKEND = """
import pathlib
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "{name}-{version}.dist-info")
    info.mkdir()
    about = "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    (info / "METADATA").write_text(about)
    (info / "WHEEL").write_text("Wheel-Version: 1.0\\n")
    return info.name
class __legacy__:
    get_requires_for_build_wheel = staticmethod(get_requires_for_build_wheel)
    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
"""


class Registered(NamedTuple):
    """A known version of an archive in a package registry."""

    registry: str  # "npm", "pypi" for a source archive, or "wheel"
    name: str
    version: str
    file: str  # file name written by npm or pip
    sha256: str
    megabytes: float


def fetch(package: Registered, folder: Path, log: Log) -> Path:
    """Return the path of an archive in `folder`, downloading a missing or damaged archive."""
    path = folder / package.file
    if path.is_file():
        if file_sha256(path) == package.sha256:
            return path
        log(f"{path.name} is damaged (its sha256 differs): fetching it again")
    folder.mkdir(parents=True, exist_ok=True)
    log(f"fetching {package.name} ({package.megabytes:.1f} MB)")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        downloaders = {"npm": _npm_pack, "pypi": _pip_download, "wheel": _wheel_download}
        downloaders[package.registry](package, Path(temporary))
        downloaded = Path(temporary, package.file)
        if not downloaded.is_file() or file_sha256(downloaded) != package.sha256:
            raise UserError(
                f"{package.file} from {package.registry} differs from the known version: try later"
            )
        downloaded.replace(path)
    return path


def _npm_pack(package: Registered, folder: Path) -> None:
    if shutil.which("npm") is None:
        raise UserError(f"npm is needed to fetch {package.name}: install npm")
    named = f"{package.name}@{package.version}"
    run_program(["npm", "pack", "--ignore-scripts", "--fetch-retries=0", named], folder)


def _pip_download(package: Registered, folder: Path) -> None:
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").write_text("")
    code = BACKEND.format(name=package.name, version=package.version)
    (backend / "build_meta.py").write_text(code)
    options = ["--no-binary", ":all:", "--no-build-isolation", "--use-pep517"]
    _pip(package, folder, options, {"PYTHONPATH": str(backend.parent)})


def _wheel_download(package: Registered, folder: Path) -> None:
    """Download a wheel for any Python version and platform, since it is only read."""
    _, _, python, _, platforms = package.file.removesuffix(".whl").split("-")
    options = ["--only-binary", ":all:", "--python-version", python[2:]]
    options += [word for name in platforms.split(".") for word in ("--platform", name)]
    _pip(package, folder, options, {})


def _pip(package: Registered, folder: Path, options: list[str], variables: dict[str, str]) -> None:
    if importlib.util.find_spec("pip") is None:  # uv creates environments without pip
        raise UserError(
            f"pip is needed to fetch {package.name}: run "
            f"uv pip install --python {sys.executable} pip"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    options = [*options, "--no-deps", "--require-hashes", "--retries", "1", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-r", requirements.name]
    run_program(command, folder, variables)


def read_members(
    archive: Path | bytes, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each regular file in a .tar.gz for which `wanted(name)` is true."""
    content = archive.read_bytes() if isinstance(archive, Path) else archive
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as members:
        for member in members:
            if member.isreg() and wanted(member.name):
                yield member.name, cast(IO[bytes], members.extractfile(member)).read()
