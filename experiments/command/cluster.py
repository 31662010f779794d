"""Start-up of the devices and processes that a command runs on."""

import ctypes
import functools
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax

import cpc
from cpc import train
from cpc.data import cache_dir
from cpc.files import flatten, plain
from cpc.types import UserError

#: Keys of a config that may differ between the processes of a run.
PER_PROCESS = ("data.num_threads", "logger")


def start(device: str, config: Any = None, workdir: str | None = None) -> jax.sharding.Mesh:
    """Join the other processes, if any, choose the devices and return their mesh.

    Only process 0 prints. It waits up to CPC_JOIN_SECONDS for the others. All processes end if
    one hangs for CPC_HANG_SECONDS or has another config, run directory or version.
    """

    def identify():
        settings = {} if config is None else flatten(plain(config))
        own = {name: settings[name] for name in settings if name not in PER_PROCESS}
        return {"workdir": workdir, **describe_version(), **own}

    train.join_processes(
        read_seconds("CPC_JOIN_SECONDS", 120),
        hang_seconds=read_seconds("CPC_HANG_SECONDS", 300),
        identify=identify,
    )
    if not train.is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 (open to the end)
    keep_freed_memory()
    compiled = cache_dir() / "compiled"
    try:
        compiled.mkdir(parents=True, exist_ok=True)
        train.enable_compilation_cache(compiled)
    except OSError as error:
        print(f"compiled programs are not cached: cannot write to {compiled} ({error.strerror})")
    devices = train.choose_devices(device)
    if jax.process_count() == 1:
        jax.config.update("jax_default_device", devices[0])
    return train.make_mesh(devices=devices)


def describe_version() -> dict[str, Any]:
    """Return the versions of cpc and JAX, on which results depend."""
    return {"cpc": cpc.__version__, "git_revision": git_revision(), "jax": jax.__version__}


@functools.cache
def git_revision() -> str | None:
    """Return the commit of this cpc checkout, or None if git is missing or there is no checkout."""
    folder = pathlib.Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        git = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=folder, check=False
        )
    except OSError:
        return None
    return git.stdout.strip() or None


def start_alone(device: str, kind: str) -> jax.sharding.Mesh:
    """Return a mesh of one device, for kinds whose steps are too small to split."""
    if (cluster := train.find_cluster()) is not None:
        raise UserError(
            f"{kind} needs one device (got {cluster.number} processes): set JAX_NUM_PROCESSES=1"
        )
    return train.make_mesh(devices=[start(device).devices.flat[0]])


def read_seconds(name: str, default: float) -> float:
    """Return a time in seconds from an environment variable."""
    text = os.environ.get(name, str(default))
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise UserError(f"{name} must be a number of seconds (got {text!r})")
    return float(text)


def load_in_turn(load: Callable[[], Any]) -> Any:
    """Call load() on process 0 first, so that other processes can read the files that it caches."""
    loaded = load() if train.is_first() else None
    train.wait_for_all("data")
    return load() if loaded is None else loaded


def keep_freed_memory() -> None:
    """Let glibc keep freed buffers, since returning them takes up to half of a step on CPUs.

    Sets M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD and M_ARENA_MAX of mallopt(3).
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**28), (-8, 1)):
            mallopt(option, value)
