"""The folder of prepared data, and the lines of progress while data are prepared."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cpc.files import read_sealed, write_sealed
from cpc.types import UserError

T = TypeVar("T")
#: Receives lines of progress while data are fetched, decoded and packed.
Log: TypeAlias = Callable[[str], object]


def log_to_stderr(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """Return `$CPC_DATA`, or `cpc` in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`)."""
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
