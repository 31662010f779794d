"""Mutate single lines, run the nearest tests, and report surviving mutations.

    python -m tests.mutations --seed 0 --number 100 --out build/mutations.jsonl
    python -m tests.mutations --seed 3 --number 20 --out FILE --only cpc/negatives/rules.py
    python -m tests.mutations --replay build/mutations.jsonl --out FILE

Tests run in a copy of the checkout. FILE gets a line of JSON per mutation, and a run with the same
FILE continues it. A seed draws the same mutations while the sources are unchanged; a replay applies
mutations whose line still exists in a function of the same name, in any file. The exit status is 1
if a mutation survives that was killed before. Outcomes:

    killed     a test failed                  timeout   tests hang that pass in half of the limit
    survived   all tests passed               slow      the limit is too short, and no test failed
    gone       the line no longer exists      unclear   a test failed, and does without the mutation
"""

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from tests.mutations.places import Mutation, choose, locate, mutate, nearest_tests, package_of

ROOT = Path(__file__).parents[2]
MUTATED = ("cpc/", "experiments/")
NOT_COPIED = (".git", ".venv", ".hypothesis", "__pycache__", "build", "dist", "runs")
MARKS = ("not nightly and not network and not whole", "whole and not network and not nightly")
MAX_MEMORY = 16 << 30
LIMIT_SECONDS = 240.0


def read_sources(*tops):
    paths = [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def run_tests(tree, tests, limit, *flags):
    """Return the outcome and the tests that failed."""
    output = tree.parent / "output"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += [*flags, f"--basetemp={tree.parent / 'tmp'}", *tests]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=tree, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, env={**os.environ, "TMPDIR": str(tree.parent)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY)),
        )  # fmt: skip
    try:
        status = process.wait(timeout=max(limit, 1))
    except subprocess.TimeoutExpired:
        silent = time.time() - output.stat().st_mtime
        return ("timeout" if silent > limit / 2 else "slow"), []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including processes started by tests
        process.wait()
    text = output.read_text(encoding="utf-8", errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", text, re.MULTILINE)
    return ("survived", []) if status in (0, 5) else ("killed", failed or text.splitlines()[-1:])


def judge(tree, tests, file, text):
    path, end = tree / file, time.monotonic() + LIMIT_SECONDS
    outcome, failed, original = "survived", [], path.read_text(encoding="utf-8")
    for marks in MARKS if tests else ():
        path.write_text(text, encoding="utf-8")
        outcome, failed = run_tests(tree, tests, end - time.monotonic(), "-x", "-m", marks)
        path.write_text(original, encoding="utf-8")
        if outcome == "timeout":
            unchanged, _ = run_tests(tree, tests, LIMIT_SECONDS / 2, "-m", marks)
            outcome = outcome if unchanged == "survived" else "slow"
        if outcome != "survived":
            break
    return outcome, failed


def run_all(mutations, out):
    """Append the outcome of each mutation to a file."""
    mutable = read_sources(*MUTATED)
    sources = {**mutable, **read_sources("configs", "tests")}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tree = Path(folder, "checkout")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for mutation in mutations:
            outcome, failed, tests = "gone", [], []
            if place := locate(mutable, mutation):
                file, row = place
                tests = nearest_tests(sources, file, mutation.function)
                outcome, failed = judge(tree, tests, file, mutate(sources[file], row, mutation))
            record(out, mutation, outcome, "".join(failed[:1]), tests)
        killed = [(m, result) for m, result in read_results(out).items()
                  if result["outcome"] == "killed" and ".py" in result["killer"]]  # fmt: skip
        killers = list({result["killer"] for _, result in killed})
        failed = run_tests(tree, killers, 10 * LIMIT_SECONDS)[1] if killers else []
        for mutation, result in killed:
            if result["killer"] in failed:
                record(out, mutation, "unclear", result["killer"], result["tests"])


def record(out, mutation, outcome, killer, tests):
    result = {**mutation._asdict(), "outcome": outcome, "killer": killer, "tests": tests}
    with out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(result) + "\n")
    print(f"{outcome:9}{describe(mutation)}", *[f"{'by':>8} {killer}"] * bool(killer),  # noqa: T201
          sep="\n", flush=True)  # fmt: skip


def describe(mutation):
    place = f"{mutation.file} {mutation.function}"
    return f"{place}\n{'':9}{mutation.line}\n{'->':>8} {mutation.mutated}"


def read_results(path):
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else ()
    results = map(json.loads, lines)
    return {Mutation(*(result[name] for name in Mutation._fields)): result for result in results}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--only", nargs="+", default=[], help="files to mutate")
    parser.add_argument("--replay", type=Path, help="the results of an earlier run")
    options = parser.parse_args()
    before = read_results(options.replay)
    chosen = list(before) or choose(
        read_sources(*MUTATED), options.seed, options.number, options.only
    )
    done = read_results(options.out)
    run_all([mutation for mutation in chosen if mutation not in done], options.out)
    outcomes = {m: result["outcome"] for m, result in read_results(options.out).items()}
    alive = [m for m in chosen if outcomes[m] in ("survived", "slow")]
    packages = pd.Series([package_of(m.file) for m in chosen], name="package")
    counts = pd.crosstab(packages, pd.Series([outcomes[m] for m in chosen]), margins=True)
    survivors = [f"{outcomes[m]:9}{describe(m)}" for m in alive]
    print("\nSurvivors:", *survivors, "", counts.to_string(), sep="\n")  # noqa: T201
    sys.exit(any(before[m]["outcome"] in ("killed", "timeout") for m in alive if before))


if __name__ == "__main__":
    main()
