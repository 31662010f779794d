"""Run campaigns of kills, damage, unusual folders and configs, and malicious exports.

    python -m tests.endurance --seconds 3600
    python -m tests.endurance --seconds 60 --seed 7 --only damage

A seed determines the attempts and their order, up to the time limit. Failures are printed with
their attempt; the exit status is 1 if there was a failure.
"""

import collections
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import app, flags, logging

from tests.endurance import commands, configs, damage, exports, folders, kills
from tests.endurance.tries import OUTCOMES, SURVIVED, Try

#: Attempts and share of time by campaign; forking ones run before JAX starts threads.
CAMPAIGNS = {
    "configs": (configs.tries, 0.1),
    "folders": (folders.tries, 0.1),
    "commands": (commands.tries, 0.1),
    "kills": (kills.tries, 0.4),
    "damage": (damage.tries, 0.25),
    "exports": (exports.tries, 0.05),
}
SECONDS = flags.DEFINE_float("seconds", 3600.0, "Time limit in seconds.")
SEED = flags.DEFINE_integer("seed", 0, "Random seed.")
ONLY = flags.DEFINE_list("only", [], f"Campaigns: {', '.join(CAMPAIGNS)}; default: all.")


def campaign(seconds: float, seed: int, only: list[str]) -> Iterator[tuple[str, Try]]:
    names = only or list(CAMPAIGNS)
    total = sum(CAMPAIGNS[name][1] for name in names)
    for name in names:
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


def table(found: dict[str, collections.Counter]) -> str:
    lines = [f"{'campaign':10}{'tried':>8}" + "".join(f"{name:>16}" for name in OUTCOMES)]
    for name, count in found.items():
        cells = "".join(f"{count[outcome]:16,}" for outcome in OUTCOMES)
        lines.append(f"{name:10}{count.total():8,}{cells}")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    logging.set_verbosity(logging.ERROR)  # JAX reports missing platforms
    found: dict[str, collections.Counter] = {}
    failures = 0
    for name, one in campaign(SECONDS.value, SEED.value, ONLY.value):
        found.setdefault(name, collections.Counter())[one.outcome] += 1
        if one.outcome != SURVIVED:
            failures += 1
            print(f"{one.outcome}: {name}: {one.what}\n    {one.said}", flush=True)  # noqa: T201
    print(table(found))  # noqa: T201
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    app.run(main)
