"""Where lines of progress go while data are fetched, decoded and packed."""

import sys
from collections.abc import Callable
from typing import TypeAlias

Log: TypeAlias = Callable[[str], object]


def log_to_stderr(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
