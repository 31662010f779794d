"""Entry points: the only place where model, loss, data and evaluators meet."""

import os
import sys

if os.name == "nt":  # which has no fcntl, by which runs and caches are held
    sys.stderr.write("error: commands of cpc need Linux or macOS: on Windows give them in WSL\n")
    sys.exit(2)


def _say_interrupted(kind, error, trace, show=sys.excepthook):
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("error: interrupted\n")
    else:
        show(kind, error, trace)


if sys.argv[0] == "-m":  # a command starts, and imports for seconds before it can catch anything
    sys.excepthook = _say_interrupted
