"""A report of the installation: versions, devices, data directory and optional extras."""

import importlib.metadata
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

from packaging.requirements import Requirement

import cpc

#: A script that prints the data directory and the devices. It runs in a child process, because a
#: device driver may crash or hang, and importing a broken jax installation fails.
CHILD_SCRIPT = """
import collections, sys, jax
sys.path.append(sys.argv[1])
from cpc.data import cache_dir
print(cache_dir(), flush=True)
try:
    devices = jax.local_devices()
except AssertionError:  # jax's own, without a message
    sys.exit(f"jax has no plug-in here for JAX_PLATFORMS={jax.config.jax_platforms}")
kinds = collections.Counter((one.platform, one.device_kind) for one in devices)
print("; ".join(f"{n} {platform} ({kind})" for (platform, kind), n in kinds.items()))
"""
#: The script's time limit. Without one, jax waits forever for a TPU that is in use.
DEVICE_SECONDS = 60.0


def describe() -> str:
    """Return the installation report. Listing devices may take at most `DEVICE_SECONDS`."""
    data, devices = ask_child(DEVICE_SECONDS)
    return "\n".join(
        [
            f"cpc      {cpc.__version__}, in {Path(__file__).parent}",
            f"Python   {platform.python_version()}, {platform.platform()}",
            f"jax      {find_version('jax')}: {devices}",
            f"data     {data}{'' if Path(data).exists() else ' (nothing is there yet)'}",
            *describe_extras(),
        ]
    )


def ask_child(limit_seconds: float) -> tuple[str, str]:
    """Return the data directory and a text with the devices, or why none were found."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", CHILD_SCRIPT, str(Path(__file__).parents[1])],
            capture_output=True,
            timeout=limit_seconds,
            check=False,
        )
        output, error, end = done.stdout, done.stderr, f"status {done.returncode}"
    except subprocess.TimeoutExpired as timeout:
        output, error, end = timeout.stdout or b"", b"", f"no answer within {limit_seconds:g} s"
    data, *devices = output.decode(errors="replace").splitlines() or ["not known"]
    if not devices:
        reasons = error.decode(errors="replace").split("\n")
        reason = next((line for line in reversed(reasons) if line.strip()), end)
        devices = [f"no devices: {reason.strip()}"]
    return data, devices[0]


def find_version(name: str) -> str | None:
    """Return a distribution's version, or None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_extras(name: str = "cpc-jax") -> list[str]:
    """Return one line per extra of a distribution, with package versions or the install command."""
    try:
        extras = importlib.metadata.metadata(name).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return [f"extras   are not known: {name} is not installed (pip install -e . in a checkout)"]
    lines = ["extras"]
    for extra in extras:
        found = find_packages(name, extra)
        missing = [package for package, version in found.items() if version is None]
        text = ", ".join(f"{package} {version}" for package, version in found.items())
        if missing:
            text = f"lacks {', '.join(missing)}: pip install '{name}[{extra}]'"
        lines += textwrap.wrap(f"  {extra:<8}{text}", 100, subsequent_indent=" " * 10)
    return lines


def find_packages(name: str, extra: str) -> dict[str, str | None]:
    """Return the versions of the packages that an extra requires, by package name.

    Missing or too old packages map to None. Nested extras such as jax[cuda12] are also resolved.
    """
    found: dict[str, str | None] = {}
    for line in importlib.metadata.requires(name) or []:
        wanted = Requirement(line)
        marker = wanted.marker
        if marker is None or [marker.evaluate({"extra": e}) for e in ("", extra)] != [False, True]:
            continue
        version = find_version(wanted.name)
        fits = version is not None and wanted.specifier.contains(version, prereleases=True)
        found[wanted.name] = version if fits else None
        for inner in wanted.extras if fits else ():
            found |= find_packages(wanted.name, inner)
    return found
