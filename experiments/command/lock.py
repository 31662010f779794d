"""One command at a time in a run directory."""

import contextlib
import fcntl
import json
import os
import pathlib
import platform
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

import psutil

from cpc.files import RUN_LOCK, read_json, seal
from cpc.types import UserError

#: Locked while a command works in the directory; says whose it is, and its time moves.
LOCK = RUN_LOCK
HEARTBEAT_SECONDS = 15.0
#: Without a sign for so long, an owner on another machine is dead.
SILENCE_SECONDS = 45.0


@contextlib.contextmanager
def hold(folder: pathlib.Path) -> Iterator[None]:
    """Hold a run directory for this process alone.

    The lock is the system's (flock): it goes with the process that holds it, however that ends.
    Not all file systems share it between machines, or have it. So the file also names its owner,
    which moves its time of change while it lives: what another machine left is waited for, and
    taken over when no sign comes.

    Raises:
        UserError: another process holds it; OSError: the directory cannot be written to.
    """
    if (folder / LOCK).exists() and not (folder / LOCK).is_file():
        raise UserError(f"{folder / LOCK} is not a regular file: remove it")
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        has_locks = True
        try:
            _lock_for_good(file)
        except BlockingIOError:
            raise UserError(_in_use(folder)) from None
        except OSError:
            has_locks = False
        if _is_owned(folder, has_locks):
            raise UserError(_in_use(folder))
        file.truncate(0)
        file.write(_describe_owner())
        file.flush()
        done, has_crashed = threading.Event(), True
        threading.Thread(target=_beat, args=(folder / LOCK, done), daemon=True).start()
        try:
            yield
            has_crashed = False
        except (UserError, KeyboardInterrupt, SystemExit):
            has_crashed = False
            raise
        finally:
            done.set()
            if not has_crashed:
                with contextlib.suppress(OSError):
                    file.truncate(0)


def _lock_for_good(file: IO[str]) -> None:
    """Lock a file, or raise BlockingIOError: `is_held` has it for an instant, a run for longer."""
    for _ in range(10):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.02)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(folder: pathlib.Path) -> bool | None:
    """Return whether a process holds a run directory; None if that cannot be known here."""
    try:
        with (folder / LOCK).open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or no locks here
        return None
    return None if _owner(folder).get("host", platform.node()) != platform.node() else False


def was_released(folder: pathlib.Path) -> bool:
    """Return whether the last command in a run directory came to an end of its own."""
    try:
        return (folder / LOCK).stat().st_size == 0
    except OSError:
        return False


def _beat(path: pathlib.Path, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)


def _describe_owner() -> str:
    started = psutil.Process().create_time()
    return json.dumps(seal({"host": platform.node(), "pid": os.getpid(), "started": started}))


def _owner(folder: pathlib.Path) -> dict[str, Any]:
    try:
        found = read_json(folder / LOCK)
    except UserError:  # empty: the last owner has ended
        return {}
    return found if isinstance(found, dict) else {}


def _is_owned(folder: pathlib.Path, has_locks: bool) -> bool:
    """Return whether the process that the file names lives, where the lock does not say so."""
    owner = _owner(folder)
    if owner.get("host") == platform.node():
        if has_locks:
            return False
        try:
            return abs(psutil.Process(owner["pid"]).create_time() - owner["started"]) < 1
        except (psutil.Error, LookupError, TypeError, ValueError, OverflowError):
            return False
    return bool(owner) and _is_beating(folder / LOCK, owner)


def _is_beating(path: pathlib.Path, owner: dict[str, Any]) -> bool:
    print(
        f"{path.parent} was last held by process {owner.get('pid')} on {owner.get('host')}: "
        f"waiting {SILENCE_SECONDS:.0f} s for a sign of it"
    )
    first, end = path.stat().st_mtime_ns, time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < end:
        time.sleep(min(1.0, SILENCE_SECONDS / 10))
        if path.stat().st_mtime_ns != first:
            return bool(_owner(path.parent))
    return False


def _in_use(folder: pathlib.Path) -> str:
    owner = _owner(folder)
    who = f"process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= owner.keys() else ""
    return (
        f"{folder} is in use by {who or 'another process'}: wait for its end, or stop it, or "
        "choose another --workdir"
    )
