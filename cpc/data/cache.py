"""The cache directory of prepared data, and logging of progress."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cpc.files import locked, read_sealed, write_sealed
from cpc.types import UserError

T = TypeVar("T")
#: Callback that receives each line of progress while data are fetched, decoded and packed.
Log: TypeAlias = Callable[[str], object]


def log_to_stderr(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """Return `$CPC_DATA` or, if it is not set, `cpc` in `$XDG_CACHE_HOME` or `~/.cache`."""
    own = os.environ.get("CPC_DATA")
    try:
        return Path(own or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/cpc").expanduser()
    except RuntimeError as error:
        raise UserError(
            f"the directory for prepared data is unknown ({error}): set CPC_DATA to a directory"
        ) from error


@contextmanager
def preparing(what: str, log: Log, folder: Path | None = None) -> Iterator[Path]:
    """Yield a folder, by default `cache_dir()`, to one process at a time, to prepare `what` in it.

    If the lock file `what`.lock cannot be written, several processes may prepare the same data.
    """
    folder = cache_dir() if folder is None else folder
    lock = folder / f"{what}.lock"
    waiting = f"another process is preparing the same data and has locked {lock}: waiting"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(lock, lambda: log(waiting)):
            yield folder
    except OSError as error:
        raise UserError(f"cannot prepare {what} in {folder}: {error}") from error


def remember(
    path: Path, make: Callable[[], dict[str, Any]], parse: Callable[[Any], T], log: Log, what: str
) -> T:
    """Return the parsed content of a cached file, computing it with `make` if necessary.

    The content of a missing or damaged file is computed. If the file cannot be written, the content
    is not cached. `log` receives one sentence about a file that is damaged or cannot be written.
    `what` is the clause of this sentence that names the work to be repeated.
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
        log(f"{path} cannot be written ({error.strerror}): the next run repeats this work")
    return parse(value)
