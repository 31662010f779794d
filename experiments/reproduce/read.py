"""What the cells of a reproduction have recorded, as far as they are."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cpc.files import read_json
from cpc.results import Frame, Run, at_end, last_scores, read_run, score_frame, stem
from cpc.types import UserError
from experiments.command.run_dir import read_failure


class Reproduction(NamedTuple):
    """A folder of cells, read as far as they are."""

    folder: Path
    plan: dict[str, Any]
    runs: dict[str, list[Run]]
    """By cell, one for each seed that has recorded something."""
    scores: Frame
    """The scores of all runs that ended: their fields, and the cell."""
    problems: list[str]
    """A sentence for each cell that failed and each file that is damaged."""
    waiting: list[str]
    """Cells that have not begun."""


def read_reproduction(folder: str | Path) -> Reproduction:
    """Return the plan of a folder and what its cells recorded.

    Raises:
        UserError: the folder holds no reproduction.
    """
    folder = Path(folder)
    path = folder / "sweep.json"
    recorded = read_json(path) if path.exists() else {}
    plan = recorded.get("reproduction") if isinstance(recorded, dict) else None
    if not isinstance(plan, dict):
        raise UserError(f"{folder} holds no reproduction: give the --workdir of cpc reproduce")
    names = list(recorded.get("cells", {}))
    runs: dict[str, list[Run]] = {stem(name): [] for name in names}
    problems, begun, scores = [], set(), [score_frame([]).assign(cell="")]
    for name in names:
        if failure := read_failure(folder / name):
            problems.append(f"{name}: {failure}")
            begun.add(stem(name))
        try:
            run = read_run(folder / name)
        except UserError:  # it has recorded nothing
            continue
        problems += run.problems
        runs[stem(name)].append(run)
        seed = int(run.config.get("seed") or 0)
        scores.append(at_end(run, last_scores(run.scores)).assign(cell=stem(name), seed=seed))
    waiting = [cell for cell, found in runs.items() if not found and cell not in begun]
    filled = [frame for frame in scores if len(frame)] or scores[:1]
    return Reproduction(folder, plan, runs, pd.concat(filled), problems, waiting)


def first_run(reproduction: Reproduction, cell: str) -> Run | None:
    """Return the first run of a cell."""
    return next(iter(reproduction.runs.get(cell, [])), None)
