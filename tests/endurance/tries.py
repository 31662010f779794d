"""What a try can come to, and how it is told."""

import contextlib
import io
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cpc.types import UserError

#: A try that has not come to an end after so long hangs.
LIMIT_SECONDS = 30.0
SURVIVED, SILENT, CRASHED, HUNG = "survived", "silently wrong", "crashed", "hung"
OUTCOMES = (SURVIVED, SILENT, CRASHED, HUNG)


class Try(NamedTuple):
    """Something done to the program, and what came of it."""

    what: str
    """What was done, so that it can be done again."""
    outcome: str
    """Survived: nothing has changed, or a sentence says what has."""
    said: str = ""
    """The sentence, or the end of the traceback."""


class TooLongError(BaseException):
    """The time of a try is over. No `except Exception` takes it for a mistake of a user."""


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
    """Try something that may be refused by a sentence, or come out right, or say what is not.

    Args:
        what: what was done before.
        use: use(said) -> what it came to; appends sentences.
        is_right: whether that is what would have come without what was done.
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
