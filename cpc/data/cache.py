"""The folder of prepared data, and how a folder in it appears whole or not at all."""

import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from cpc.data.log import Log
from cpc.files import read_sealed, write_sealed
from cpc.types import UserError

T = TypeVar("T")
#: A half-written folder that nobody has written to for so long is of a process that was killed.
LEFTOVER_SECONDS = 3600


def cache_dir() -> Path:
    """Return `$CPC_DATA`, or `cpc` in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`).

    Raises:
        UserError: the user has no home directory.
    """
    own = os.environ.get("CPC_DATA")
    try:
        return Path(own or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/cpc").expanduser()
    except RuntimeError as error:
        raise UserError(
            f"the folder for prepared data is unknown ({error}): set CPC_DATA to a folder"
        ) from error


def remember(
    path: Path, make: Callable[[], dict[str, Any]], parse: Callable[[Any], T], log: Log, what: str
) -> T:
    """Return what `parse` makes of a file in the cache, which `make` gives if there is none.

    A damaged file is made again, and one that cannot be written is made at each start; `log` is
    called with a sentence on either, in which `what` is made again.
    """
    if path.exists():
        try:
            return parse(read_sealed(path))
        except (UserError, ValueError, TypeError, LookupError, OverflowError) as error:
            log(f"{error}: {what} again")
    value = make()
    try:
        write_sealed(path, value)
    except OSError as error:
        log(f"{path} cannot be written ({error.strerror}): the next run finds this out again")
    return parse(value)


@contextmanager
def part_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder next to `path`, which is removed at the end unless it has been moved.

    Folders that killed processes have left there are removed first.
    """
    for folder in path.parent.glob(f"{glob.escape(path.name)}.part-*"):
        with suppress(OSError):  # another process was faster
            files = [*folder.iterdir()] or [folder]
            if time.time() - max(file.stat().st_mtime for file in files) > LEFTOVER_SECONDS:
                shutil.rmtree(folder)
    part = path.with_name(f"{path.name}.part-{secrets.token_hex(4)}")
    part.mkdir(parents=True)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def replace_folder(part: Path, path: Path) -> None:
    """Move a finished folder to `path`, in place of the folder that is there."""
    old = part.with_name(f"{part.name}-replaced")
    while True:
        if path.is_dir():
            with suppress(FileNotFoundError):
                path.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        try:
            part.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster by a moment
                raise
        else:
            return
