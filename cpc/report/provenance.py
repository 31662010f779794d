"""The section of a run's page that lists its command, versions, configuration and files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.ticker import EngFormatter

from cpc.files import flatten
from cpc.report.engine import Section, Table
from cpc.report.words import Words
from cpc.results import Frame, Run


def provenance_section(run: Run, words: Words) -> Section:
    """Return the section with a run's command, environment, configuration and files."""
    tables = [Table("Files of the run", file_frame(run.workdir, words.files))]
    if run.skipped:
        title = f"Skipped files ({len(run.skipped):,})"
        tables.insert(0, Table(title, pd.DataFrame({"file and reason": run.skipped})))
    return made_section(run.environment, run.config, tables)


def made_section(
    environment: Mapping[str, Any], config: Mapping[str, Any], more: Sequence[Table] = ()
) -> Section:
    """Return a section with a command and collapsed tables, such as its environment and config."""
    command = environment.get("command")
    command = " ".join(map(str, command)) if isinstance(command, list) else command
    details = []
    for title, tree in (("Environment", environment), ("Configuration", config)):
        rows = [
            {"key": key, "value": ", ".join(map(str, v)) if isinstance(v, list) else str(v)}
            for key, v in flatten(tree).items()
        ]
        if rows:
            details.append(Table(title, pd.DataFrame(rows)))
    sentences = [f"Command: {command}"] if command else []
    return Section("How it was made", sentences, details=[*details, *more])


#: Descriptions of files that runs on any kind of data write, by file name.
FILES = {
    "config.json": "the configuration of the run",
    "environment.json": "versions, devices, revision, command",
    "metrics.jsonl": "all numbers of the curves, one JSON object per line",
    "scores.json": "scores of the features, with intervals",
    "scores.npz": "outcome of each test item, for paired comparisons of runs",
    "checkpoints": "training states: the newest two and the best",
    "tensorboard": "the same curves for TensorBoard",
    "probes": "arrays of the figures, and networks trained on labels",
    "audit.json": "audit of the negatives, counted before the first step",
    "exported": "the exported model, which cpc.models.load reads",
    "skipped.txt": "data files that were skipped or truncated, with reasons",
    "truth.json": "exact mutual information of the source",
}


def file_frame(workdir: Path, own: Mapping[str, str]) -> Frame:
    """Return a frame with each file of a run directory, its size and its description.

    The page and its figures are left out. `own` adds descriptions to `FILES`.
    """
    meaning, left_out = FILES | dict(own), ("report.html", "figures", "state.json")
    rows = [
        (path.name + "/" * path.is_dir(), size_phrase(path), meaning.get(path.name, ""))
        for path in sorted(workdir.iterdir())
        if path.name not in left_out and not path.name.startswith(".")
    ]
    return pd.DataFrame(rows, columns=pd.Index(["file", "size", "what it is"]))


def size_phrase(path: Path) -> str:
    """Format the size of a file or folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    return EngFormatter("B", places=int(size >= 1e9))(size)
