"""Entry points: the only place where model, loss, data and evaluators meet."""

import os
import signal
import sys

if os.name == "nt":  # which has no fcntl, by which runs and caches are held
    sys.stderr.write("error: commands of cpc need Linux or macOS: on Windows give them in WSL\n")
    sys.exit(2)


def _say_interrupted(kind, error, trace, show=sys.excepthook):
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("error: interrupted\n")
    else:
        show(kind, error, trace)


def _repair_process():
    """Open standard streams that the parent closed, and wait for children that it ignored."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 (open to the end)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


if sys.argv[0] == "-m":  # a command starts, and imports for seconds before it can catch anything
    sys.excepthook = _say_interrupted
    _repair_process()
