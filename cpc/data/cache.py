"""Where prepared data lies."""

import os
from pathlib import Path
from typing import Any

from cpc.data.log import Log
from cpc.files import write_sealed


def cache_dir() -> Path:
    """`$CPC_DATA`, else `cpc` in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`)."""
    if own := os.environ.get("CPC_DATA"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cpc"


def keep(path: Path, value: Any, log: Log) -> None:
    """Write what can be found out again to a cache, or log why it cannot be kept there."""
    try:
        write_sealed(path, value)
    except OSError as error:
        log(f"{path} cannot be written ({error.strerror}): the next run finds this out again")
