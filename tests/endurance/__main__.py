"""Run campaigns of kills, damage, unusual folders and configs, and malicious exports.

    python -m tests.endurance --seconds 3600
    python -m tests.endurance --seconds 60 --seed 7 --only damage

A seed determines the attempts and their order, up to the time limit. Failures are printed with
their attempt; the exit status is 1 if there was a failure.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from tests.endurance import commands, configs, damage, exports, folders, kills
from tests.endurance.tries import OUTCOMES, SURVIVED

#: Attempts and share of time by campaign; forking ones run before JAX starts threads.
CAMPAIGNS = {
    "configs": (configs.tries, 0.1),
    "folders": (folders.tries, 0.1),
    "commands": (commands.tries, 0.1),
    "kills": (kills.tries, 0.4),
    "damage": (damage.tries, 0.25),
    "exports": (exports.tries, 0.05),
}


def campaign(seconds, seed, only):
    total = sum(CAMPAIGNS[name][1] for name in only)
    for name in only:
        tries, weight = CAMPAIGNS[name]
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.environ["CPC_DATA"] = str(Path(folder, "data"))
            end = None
            for one in tries(rng, Path(folder)):
                yield name, one
                end = end or time.monotonic() + seconds * weight / total  # after the first
                if time.monotonic() > end:
                    break


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.endurance")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=list(CAMPAIGNS))
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # JAX reports missing platforms
    found = []
    for name, one in campaign(options.seconds, options.seed, options.only):
        found.append((name, one.outcome))
        if one.outcome != SURVIVED:
            sys.stdout.write(f"{one.outcome}: {name}: {one.what}\n    {one.said}\n")
            sys.stdout.flush()
    counts = pd.DataFrame(found, columns=["campaign", "outcome"]).value_counts().unstack()
    sys.stdout.write(f"{counts.reindex(columns=OUTCOMES).fillna(0).astype(int)}\n")
    sys.exit(any(outcome != SURVIVED for _, outcome in found))


if __name__ == "__main__":
    main()
