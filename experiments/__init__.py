"""Command-line entry points that combine models, losses, data and evaluators."""

import os
import signal
import sys

if os.name == "nt":  # run directories and caches are locked with fcntl
    sys.stderr.write("error: cpc commands need Linux or macOS: on Windows run them in WSL\n")
    sys.exit(2)


def _report_interrupt(kind, error, trace, show=sys.excepthook):
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("error: interrupted\n")
    else:
        show(kind, error, trace)


def _repair_process():
    """Reopen standard streams closed by the parent process and restore waiting for children."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor is `number`
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 (never closed)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


if sys.argv[0] == "-m":  # imports take seconds, during which the user may press Ctrl-C
    sys.excepthook = _report_interrupt
    _repair_process()
