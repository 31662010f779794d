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
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from tests.mutations.nearest import find_users, nearest_tests
from tests.mutations.places import Mutation, choose, locate, mutate, room_of

ROOT = Path(__file__).parents[2]
MUTATED = ("cpc/", "experiments/")
NOT_COPIED = (".git", ".venv", ".hypothesis", "__pycache__", "build", "dist", "runs")
MARKS = ("not nightly and not network and not whole", "whole and not network and not nightly")
MAX_MEMORY = 16 << 30


def read_sources(root: Path) -> dict[str, str]:
    tops = (*MUTATED, "configs", "tests")
    paths = [path for top in tops for path in sorted((root / top).rglob("*.py"))]
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in paths}


def run_tests(tree: Path, tests: list[str], limit: float, *flags: str) -> tuple[str, list[str]]:
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
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    failed = [line.split(" - ")[0].split(" ", 1)[1] for line in lines
              if line.startswith(("FAILED ", "ERROR "))]  # fmt: skip
    return ("survived", []) if status in (0, 5) else ("killed", failed or lines[-1:])


def judge(
    tree: Path, tests: list[str], file: str, text: str, limit: float
) -> tuple[str, list[str]]:
    path, end = tree / file, time.monotonic() + limit
    outcome, failed, original = "survived", [], path.read_text(encoding="utf-8")
    for marks in MARKS if tests else ():
        path.write_text(text, encoding="utf-8")
        outcome, failed = run_tests(tree, tests, end - time.monotonic(), "-x", "-m", marks)
        path.write_text(original, encoding="utf-8")
        if outcome == "timeout" and run_tests(tree, tests, limit / 2, "-m", marks)[0] != "survived":
            outcome = "slow"
        if outcome != "survived":
            break
    return outcome, failed


def run_all(mutations: Iterable[Mutation], out: Path, limit: float) -> None:
    """Append the outcome of each mutation to a file."""
    sources = read_sources(ROOT)
    users = find_users(sources)
    mutable = {file: text for file, text in sources.items() if file.startswith(MUTATED)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tree = Path(folder, "checkout")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for mutation in mutations:
            outcome, failed, tests = "gone", [], []
            if place := locate(mutable, mutation):
                file, row = place
                tests = nearest_tests(sources, users, file, mutation.function)
                text = mutate(sources[file], row, mutation)
                outcome, failed = judge(tree, tests, file, text, limit)
            record(out, mutation, outcome, "".join(failed[:1]), tests)
        killed = [(m, r["killer"], r["tests"]) for m, r in read_results(out).items()
                  if r["outcome"] == "killed" and ".py" in r["killer"]]  # fmt: skip
        tests = list({killer for _, killer, _ in killed})
        failed = run_tests(tree, tests, 10 * limit)[1] if tests else []
        for mutation, killer, tests in killed:
            if killer in failed:
                record(out, mutation, "unclear", killer, tests)


def record(out: Path, mutation: Mutation, outcome: str, killer: str, tests: list[str]) -> None:
    result = {**mutation._asdict(), "outcome": outcome, "killer": killer, "tests": tests}
    with out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(result) + "\n")
    end = f"{'by':>8} {killer}\n" if killer else ""
    sys.stdout.write(f"{outcome:9}{describe(mutation)}\n{end}")
    sys.stdout.flush()


def describe(mutation: Mutation) -> str:
    place = f"{mutation.file} {mutation.function}"
    return f"{place}\n{'':9}{mutation.line}\n{'->':>8} {mutation.mutated}"


def read_results(path: Path) -> dict[Mutation, dict]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
    results = map(json.loads, lines)
    return {Mutation(*(result[name] for name in Mutation._fields)): result for result in results}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--only", nargs="+", default=[], help="files to mutate")
    parser.add_argument("--replay", type=Path, help="the results of an earlier run")
    parser.add_argument("--limit", type=float, default=240, help="seconds per mutation")
    options = parser.parse_args()
    before = read_results(options.replay) if options.replay else {}
    sources = {f: text for f, text in read_sources(ROOT).items() if f.startswith(MUTATED)}
    chosen = list(before) or choose(sources, options.seed, options.number, options.only)
    done = read_results(options.out)
    run_all([mutation for mutation in chosen if mutation not in done], options.out, options.limit)
    outcomes = {m: result["outcome"] for m, result in read_results(options.out).items()}
    alive = [m for m in chosen if outcomes[m] in ("survived", "slow")]
    rooms = pd.Series([room_of(m.file) for m in chosen], name="room")
    counts = pd.crosstab(rooms, pd.Series([outcomes[m] for m in chosen]), margins=True)
    survivors = "\n".join(f"{outcomes[m]:9}{describe(m)}" for m in alive)
    sys.stdout.write(f"\nSurvivors:\n{survivors}\n\n{counts.to_string()}\n")
    sys.exit(any(before[m]["outcome"] in ("killed", "timeout") for m in alive if before))


if __name__ == "__main__":
    main()
