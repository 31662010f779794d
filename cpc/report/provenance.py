"""The part of a run's page on where it comes from: command, versions, files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpc.files import flatten
from cpc.report.engine import Section, Table
from cpc.report.words import Words
from cpc.results import Frame, Run


def provenance_section(run: Run, words: Words) -> Section:
    """Return how a run was made: command, environment, configuration, files."""
    import pandas as pd

    details = provenance(run.environment, run.config)
    if run.skipped:
        title = f"Skipped files ({len(run.skipped):,})"
        details.append(Table(title, pd.DataFrame({"file and reason": run.skipped})))
    details.append(Table("Files of the run", file_frame(run.workdir, words.files)))
    return Section("How it was made", command_sentences(run.environment), details=details)


def command_sentences(environment: Mapping[str, Any]) -> list[str]:
    """Return the command that made a run, as a sentence."""
    command = environment.get("command")
    command = " ".join(map(str, command)) if isinstance(command, list) else command
    return [f"Command: {command}"] if command else []


def provenance(environment: Mapping[str, Any], config: Mapping[str, Any]) -> list[Table]:
    """Return tables of environment and configuration, for the folded part of a section."""
    import pandas as pd

    tables = []
    for title, tree in (("Environment", environment), ("Configuration", config)):
        rows = [
            {"key": key, "value": ", ".join(map(str, v)) if isinstance(v, list) else str(v)}
            for key, v in flatten(tree).items()
        ]
        if rows:
            tables.append(Table(title, pd.DataFrame(rows)))
    return tables


#: What lies in any run directory.
FILES = {
    "config.json": "the configuration of the run",
    "environment.json": "versions, devices, revision, command",
    "metrics.jsonl": "every number of the curves, one object a line",
    "scores.json": "what was measured of the features, with intervals",
    "scores.npz": "whether each test item was right, to pair runs by item",
    "checkpoints": "states of the model, newest and best",
    "tensorboard": "the same curves for TensorBoard",
    "probes": "arrays of the figures, and networks trained on labels",
    "audit.json": "what the negatives are, counted before the first step",
    "exported": "the model to take away, for cpc.models.load",
    "skipped.txt": "files that could not be used, or not whole, with reasons",
    "truth.json": "exact mutual information of the source",
}


def file_frame(workdir: Path, own: Mapping[str, str]) -> Frame:
    """Return what lies in the run directory, with sizes; without what the page itself wrote."""
    import pandas as pd

    meaning = FILES | dict(own)
    rows = [
        {
            "file": path.name + ("/" if path.is_dir() else ""),
            "size": size_phrase(path),
            "what it is": meaning.get(path.name, ""),
        }
        for path in sorted(workdir.iterdir())
        if path.name not in ("report.html", "figures") and not path.name.startswith(".")
    ]
    return pd.DataFrame(rows)


def size_phrase(path: Path) -> str:
    """Return the size of a file or of a whole folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
