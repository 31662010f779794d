"""Locks that admit one command at a time to a run directory."""

import contextlib
import json
import os
import pathlib
import platform
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil

from cpc.files import RUN_LOCK, read_json, seal, try_lock
from cpc.types import UserError

HEARTBEAT_SECONDS = 15.0
#: A lock from another machine that is not touched for this long is stale.
SILENCE_SECONDS = 45.0


@contextlib.contextmanager
def hold(folder: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a run directory.

    Some file systems have no locks or do not share locks between machines. The file therefore also
    contains its owner, which touches it regularly. A stale lock from another machine is replaced.
    """
    path = folder / RUN_LOCK
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: remove this path")
    with path.open("a+", encoding="utf-8") as file:
        has_lock, owner = try_lock(file), _read_owner(folder)
        if has_lock is False or _holds(owner, folder, has_lock is None):
            who = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
            raise UserError(
                f"{folder} is in use by {who}: wait for it, stop it, or choose another --workdir"
            )
        file.truncate(0)
        file.write(json.dumps(seal(_describe_owner())))
        file.flush()
        done = threading.Event()
        threading.Thread(target=_beat, args=(path, done), daemon=True).start()
        try:
            yield
        finally:
            done.set()
            with contextlib.suppress(OSError):
                file.truncate(0)


def is_held(folder: pathlib.Path) -> bool | None:
    """Return whether a process holds a run directory, or None if this machine cannot test it."""
    owner = _read_owner(folder)
    if not (folder / RUN_LOCK).exists() or owner.get("host", platform.node()) != platform.node():
        return None
    return _lives(owner)


def _beat(path: pathlib.Path, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)


def _describe_owner() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "job": os.environ.get("SLURM_JOB_ID"),
        "restart": os.environ.get("SLURM_RESTART_COUNT"),
    }


def _read_owner(folder: pathlib.Path) -> dict[str, Any]:
    """Return the owner of a lock, or {} if the lock was released or its file is damaged."""
    try:
        found = read_json(folder / RUN_LOCK)
    except UserError:
        return {}
    return found if isinstance(found, dict) and {"host", "pid", "started"} <= found.keys() else {}


def _holds(owner: dict[str, Any], folder: pathlib.Path, lacks_locks: bool) -> bool:
    """Return whether a lock's owner still runs, for file systems with unreliable locks."""
    if not owner:
        return False
    if owner["host"] == platform.node():
        return lacks_locks and _lives(owner)
    own = _describe_owner()
    if own["job"] and own["job"] == owner.get("job") and own["restart"] != owner.get("restart"):
        return False  # SLURM has requeued the job of the owner
    print(
        f"{folder} was last held by process {owner['pid']} on {owner['host']}: waiting "
        f"{SILENCE_SECONDS:.0f} s to see whether it still runs"
    )
    first, end = (folder / RUN_LOCK).stat().st_mtime_ns, time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < end:
        time.sleep(min(1.0, SILENCE_SECONDS / 10))
        if (folder / RUN_LOCK).stat().st_mtime_ns != first:
            return bool(_read_owner(folder))
    return False


def _lives(owner: dict[str, Any]) -> bool:
    """Return whether an owner on this machine runs, and is not another process with its id."""
    try:
        process = psutil.Process(owner["pid"])
        is_same = abs(process.create_time() - owner["started"]) < 1
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, LookupError, TypeError, ValueError, OverflowError):
        return False
