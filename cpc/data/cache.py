"""Where prepared data lies."""

import os
from pathlib import Path
from typing import Any

from cpc.data.log import Log
from cpc.files import write_sealed
from cpc.types import UserError


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


def keep(path: Path, value: Any, log: Log) -> None:
    """Write what can be found out again to a cache, or log why it cannot be kept there."""
    try:
        write_sealed(path, value)
    except OSError as error:
        log(f"{path} cannot be written ({error.strerror}): the next run finds this out again")
