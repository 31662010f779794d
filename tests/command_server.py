"""A process with imported libraries that forks once per requested command.

Half of a command's start is spent on imports. A request is a line of JSON on stdin with module and
flags, environment and output files; the answer is a line with the exit status. The fork runs the
module like `python -m`. JAX has no backend before the fork, so flags and devices follow the
requested environment.
"""

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable

#: Exit status of a command that did not end.
HUNG = 1000


def serve() -> Callable[[], None]:
    """Answer requests until stdin ends; in a fork, return a function that runs its command."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # imports may print
    import_libraries()
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
    """Return the exit status of a child that gets signals, each some seconds after the last.

    HUNG if it was killed after the limit.
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


def import_libraries() -> None:
    """Import libraries and packages, but no command: its flags may be defined only once."""
    import matplotlib.pyplot  # noqa: F401
    import pandas  # noqa: F401
    import sklearn.manifold  # noqa: F401
    import tensorboardX  # noqa: F401

    import experiments.kinds.registry  # noqa: F401


def become(words: list[str], environment: dict[str, str], outputs: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    module, *sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()()
