"""Attempts to break the program and their outcomes."""

import contextlib
import io
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cpc.types import UserError

#: An attempt hangs after this time.
LIMIT_SECONDS = 30.0
SURVIVED, SILENT, CRASHED, HUNG = "survived", "silently wrong", "crashed", "hung"
OUTCOMES = (SURVIVED, SILENT, CRASHED, HUNG)


class Try(NamedTuple):
    """An attempt and its outcome."""

    what: str
    """Description, sufficient to repeat it."""
    outcome: str
    """Survived: the result is right, or the problem was reported."""
    said: str = ""
    """The message, or the end of the traceback."""


class TooLongError(BaseException):
    """The time limit of an attempt; not an Exception, which code might catch."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    def end(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(what: str, use: Callable[[list[str]], Any], is_right: Callable[[Any], bool]) -> Try:
    """Attempt something that may raise UserError, return the right result or report a problem.

    Args:
        what: description of the attempt.
        use: use(said) -> result; appends reported problems.
        is_right: whether a result equals that of undamaged data.
    """
    said: list[str] = []
    try:
        with limited(LIMIT_SECONDS), contextlib.redirect_stdout(io.StringIO()):
            found = use(said)
    except UserError as error:
        return Try(what, SURVIVED, str(error))
    except TooLongError:
        return Try(what, HUNG)
    except Exception as error:
        return Try(what, CRASHED, describe(error))
    return Try(what, SURVIVED if said or is_right(found) else SILENT, " ".join(said))


def describe(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:500]} ({last.filename}:{last.lineno})"
