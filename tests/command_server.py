"""A process that has imported what commands import, and forks for each that is asked for.

A command spends half of its start importing. A line of JSON on stdin asks for one: its module and
flags, its environment, the files for its output; a line with its exit status answers. The fork runs
the module as `python -m` does, with everything that belongs to a process its own; JAX has no
backend yet at that time, so that its flags and devices are those of the environment asked for.
"""

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable

#: The status of a command that did not end.
HUNG = 1000


def serve() -> Callable[[], None]:
    """Answer requests until stdin ends; in a fork, return what runs its command."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an import prints is no answer
    import_what_commands_import()
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        signals, limit = request.pop("signals"), request.pop("limit")
        child = os.fork()
        if child == 0:
            answers.close()
            return lambda: become(**request)
        answers.write(f"{wait_for(child, signals, limit)}\n")
    return lambda: None


def wait_for(child: int, signals: list[tuple[float, int]], limit: float) -> int:
    """Return the exit status of a child that gets signals, each so many seconds after the last.

    HUNG if it has to be killed when the limit is over.
    """
    for seconds, number in (*signals, (limit, signal.SIGKILL)):
        end, done = time.monotonic() + seconds, 0
        while time.monotonic() < end and not done:
            done, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0 if done else 0.005)
        if done:
            return os.waitstatus_to_exitcode(status)
        os.kill(child, number)
    os.waitpid(child, 0)
    return HUNG


def import_what_commands_import() -> None:
    """Import libraries and rooms, but no command, whose flags may be defined only once."""
    import matplotlib.pyplot  # noqa: F401
    import pandas  # noqa: F401
    import sklearn.manifold  # noqa: F401
    import tensorboardX  # noqa: F401

    import experiments.kinds.registry  # noqa: F401


def become(words: list[str], environment: dict[str, str], outputs: list[str]) -> None:
    """Be the process of a command."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    module, *sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()()
