"""Several runs on one page: their curves, and a table with a row for each cell.

python -m experiments.compare runs/a runs/b --workdir runs/compared
python -m experiments.compare runs/sweep

A folder that is no run stands for all runs in it. Runs whose configs differ in nothing but the
seed are one cell. Writes comparison.html, comparison.md (the table, for a README) and
comparison.json, into --workdir or, of a single folder, there. Differences are from the first.
"""

import argparse
import json
import os
import pathlib
from collections.abc import Sequence

from cpc import report
from cpc.types import UserError
from experiments import status
from experiments.launch import fail


def find(paths: Sequence[pathlib.Path]) -> list[tuple[str, pathlib.Path]]:
    """Names and directories of all runs in the folders."""
    found: list[pathlib.Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is no folder: name run directories, or a folder with runs")
        runs = list(status.find_runs(path))
        if not runs:
            raise UserError(f"{path} holds no run: name run directories, or a folder with runs")
        found += runs
    found = list({run.resolve(): run for run in found}.values())
    common = pathlib.Path(os.path.commonpath([run.resolve() for run in found]))
    names = [str(run.resolve().relative_to(common)) for run in found]
    return [
        (run.resolve().name if name == "." else name, run)
        for name, run in zip(names, found, strict=True)
    ]


def read_paper(path: str | None) -> dict[str, str]:
    """Texts by the name of a cell."""
    if path is None:
        return {}
    try:
        content = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read --paper {path} ({error})") from error
    if not isinstance(content, dict) or not all(isinstance(t, str) for t in content.values()):
        raise UserError(f"--paper {path} must hold one object: name of a cell -> text")
    return content


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "experiments.compare", description=__doc__, formatter_class=words
    )
    parser.add_argument("runs", type=pathlib.Path, nargs="+", help="run directories, or folders")
    parser.add_argument("--workdir", type=pathlib.Path, help="where to write")
    parser.add_argument("--paper", help="json file: name of a cell -> text, for one more column")
    options = parser.parse_args(argv)
    runs = find([path.expanduser() for path in options.runs])
    folder = options.workdir or (options.runs[0] if len(options.runs) == 1 else None)
    if folder is None:
        raise UserError("no --workdir is given: name the directory for the page of several folders")
    page = report.write_comparison(runs, folder.expanduser(), read_paper(options.paper))
    print(page.with_suffix(".md").read_text(), end="")
    print(f"comparison: {page}")


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        fail(str(problem))
