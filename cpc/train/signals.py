"""SIGTERM and Ctrl-C as a wish that the loop grants after the step."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from cpc.types import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: The `stop` of the outermost context that is open.
_open: list[Callable[[], str]] = []


class Stopped(UserError):
    """Work that ended before it was done, because a signal asked for it."""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], str]]:
    """Yield `stop() -> str`: the name of the signal that came, or "".

    After the first signal the former handlers are back: a second Ctrl-C ends the process at once.
    With several processes one of them must not stop alone, and JAX takes SIGTERM itself (see
    `Checkpoints.is_preempted`); there, and outside of the main thread, nothing is caught. Within
    another such context the wish is one and the same: both stop.
    """
    if _open:
        yield _open[0]
        return
    received: list[str] = []
    catches = jax.process_count() == 1 and threading.current_thread() is threading.main_thread()
    former = {number: signal.getsignal(number) for number in SIGNALS} if catches else {}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def receive(number: int, frame: Any) -> None:
        received.append(signal.Signals(number).name)
        restore()

    for number in former:
        signal.signal(number, receive)
    _open.append(lambda: received[0] if received else "")
    try:
        yield _open[0]
    finally:
        _open.clear()
        restore()


def raise_if_stopped() -> None:
    """Raise `Stopped` if a signal came to the `stop_on_signals` that is open.

    Called between the parts of work that takes minutes and can be made again, such as probes.
    """
    if _open and (name := _open[0]()):
        raise Stopped(f"stopped by {name}")
