"""Attempts to break the program and their outcomes."""

import contextlib
import io
import signal
import traceback
from typing import NamedTuple

from cpc.types import UserError

#: An attempt hangs after this time.
LIMIT_SECONDS = 30.0
SURVIVED, SILENT, CRASHED, HUNG = OUTCOMES = "survived", "silently wrong", "crashed", "hung"


class Try(NamedTuple):
    """A repeatable description, an outcome, and the message or the end of the traceback.

    An attempt survives if its result is right or the problem was reported.
    """

    what: str
    outcome: str
    said: str = ""


class TooLongError(BaseException):
    """The time limit of an attempt; not an Exception, which code might catch."""


def attempt(what, use, is_right=lambda found: True):
    """Attempt use(said), which returns a result, appends problems to `said` or raises UserError."""
    said = []

    def end(*_):
        raise TooLongError

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = use(said)
    except UserError as error:
        return Try(what, SURVIVED, str(error))
    except TooLongError:
        return Try(what, HUNG)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:500]} ({last.filename}:{last.lineno})"
        return Try(what, CRASHED, text)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Try(what, SURVIVED if said or is_right(found) else SILENT, " ".join(said))
