"""Compare several runs on one page with their curves and a table of scores.

    cpc compare runs/a runs/b --workdir runs/compared
    cpc compare runs/sweep

If a folder is not a run, all runs in it are compared. Runs whose configs differ only in the seed
form one cell. The command writes comparison.html, comparison.md (the table, for a README) and
comparison.json into --workdir (default: the folder, if it is the only one). Differences are taken
from the first cell.
"""

import os
import pathlib
from collections.abc import Sequence

from cpc.types import UserError
from experiments import status
from experiments.command import cli


def find(paths: Sequence[pathlib.Path]) -> list[tuple[str, pathlib.Path]]:
    """Return the name and directory of each run in `paths`, folders that are or contain runs."""
    found: list[pathlib.Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a directory: pass run directories, or a folder of runs")
        unreadable = []
        runs = list(status.find_runs(path, unreadable))
        for folder, reason in unreadable:
            print(f"{folder} is skipped: {reason}")
        if not runs:
            raise UserError(f"{path} contains no run: pass run directories, or a folder of runs")
        found += runs
    real = {run.resolve(): run for run in found}
    common = pathlib.Path(os.path.commonpath(real))
    return [
        (str(path.relative_to(common if path != common else path.parent)), run)
        for path, run in real.items()
    ]


def run(folders: Sequence[str], workdir: str | None) -> None:
    """Write a page that compares the runs in `folders`, and print its table."""
    if not folders:
        raise UserError("a run is required: pass run directories, or a folder of runs")
    paths = [pathlib.Path(folder).expanduser() for folder in folders]
    if workdir is None and len(paths) > 1:
        raise UserError("--workdir is required for several folders, e.g. --workdir runs/compared")
    runs = find(paths)
    from experiments.compare.page import write_comparison  # slow: it imports matplotlib

    folder = pathlib.Path(workdir).expanduser() if workdir else paths[0]
    page = write_comparison(runs, folder)
    print(page.with_suffix(".md").read_text(), end="")
    print(f"comparison: {page}")


if __name__ == "__main__":
    cli.run(
        lambda folders: run(folders, cli.WORKDIR.value), takes_folders=True, shared=("workdir",)
    )
