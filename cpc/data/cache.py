"""Where prepared data lies."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$CPC_DATA`, else `cpc` in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`)."""
    if own := os.environ.get("CPC_DATA"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cpc"
