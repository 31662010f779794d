"""Tables of the report, as HTML."""

import math
from pathlib import Path
from typing import Any

from cpc.report import markup
from cpc.report.markup import interval_text, number_text
from cpc.report.paper import NUM_CLASSES, SOURCE, TABLE_1, paper_accuracy
from cpc.report.probe_figures import feature_title, grouped_rows
from cpc.report.records import Record, Run, rule_name


def offset_table(record: Record) -> str:
    """All numbers of each offset of one test record."""
    columns = zip(
        record["offsets"],
        record["n"],
        record["log_n"],
        record["offset_loss"],
        record["bound"],
        record.get("bound_low", record["bound"]),
        record.get("bound_high", record["bound"]),
        record["acc_top1"],
        record["acc_pairwise"],
        record.get("state", [""] * len(record["offsets"])),
        strict=True,
    )
    rows = [
        [
            str(k),
            number_text(n, ",.0f"),
            number_text(log_n, ".2f"),
            number_text(loss, ".3f"),
            number_text(bound, ".3f"),
            interval_text(low, high, ".3f"),
            number_text(100 * top1, ".1f"),
            number_text(100 / n if n else math.nan, ".2g"),
            number_text(100 * pairwise, ".1f"),
            state if math.isfinite(bound) else "–",
        ]
        for k, n, log_n, loss, bound, low, high, top1, pairwise, state in columns
    ]
    kind = "a lower bound on the information" if record.get("is_bound") else "a score, no bound"
    return markup.table(
        [
            "offset k",
            "N",
            "log N",
            "loss",
            "log N − L",
            "95 % interval",
            "top-1 %",
            "chance %",
            "pairwise %",
            "state",
        ],
        rows,
        title=f"Rule “{rule_name(record)}”, step {record['step']:,}",
        caption=f"Test recordings; nats; log N − L is {kind}. Chance of pairwise is 50 %.",
    )


def probe_tables(run: Run) -> list[str]:
    """One table for each task, data and unit, with the paper's Table 1 as a column."""
    steps = {task: probe.get("step") for task, probe in run.probes.items()}
    return [
        probe_table(task, data, unit, rows, steps.get(task))
        for (task, data, unit), rows in grouped_rows(run).items()
    ]


def probe_table(
    task: str, data: str, unit: str, rows: list[dict[str, Any]], step: int | None
) -> str:
    """Accuracies of one task, baselines first, the paper's where it has one."""
    first = rows[0]
    with_paper = unit == "frame" and task in TABLE_1
    body = [["always the most frequent class", "", f"{100 * first['majority']:.1f}", "", "", ""]]
    kinds = [""]
    for row in rows:
        paper = paper_accuracy(task, row["features"], row["probe"], unit)
        body.append(
            [
                feature_title(row["features"]),
                "linear" if row["probe"] == "linear" else "one hidden layer",
                f"{100 * row['accuracy']:.1f}",
                f"{100 * row['low']:.1f} to {100 * row['high']:.1f}",
                f"{row['weight_decay']:g}".replace("e-0", "e-"),
                f"{paper:g}" if paper is not None else "",
            ]
        )
        kinds.append("strong" if row["features"] == "c" else "")
    if with_paper:
        supervised = TABLE_1[task][-1]
        body.append([supervised.label, "", "", "", "", f"{supervised.accuracy:g}"])
        kinds.append("")
    head = ["features", "probe", "accuracy %", "95 % interval", "weight decay", "paper %"]
    if not with_paper:
        head, body = head[:-1], [row[:-1] for row in body]
    caption = (
        f"{first['num_classes']} classes, {first['num_train']:,} training frames; tested on "
        f"{first['num_test']:,} frames of {first['num_test_utterances']:,} utterances"
        + (f", at step {step:,}" if step is not None else "")
        + ". Intervals: bootstrap over test utterances."
    )
    if with_paper:
        caption += f" Paper: {SOURCE}, {NUM_CLASSES[task]} classes."
    return markup.table(
        head,
        body,
        title=f"{task.capitalize()} by {unit}, {data}",
        caption=caption,
        kinds=kinds,
        style="named",
    )


def flat_table(tree: dict[str, Any]) -> str:
    """A nested dict as two columns of dotted names and values."""
    rows = [[name, value] for name, value in flatten(tree)]
    return markup.table([], rows, style="plain")


def flatten(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and values of a nested dict.

    >>> flatten({"optim": {"rate": 0.1}, "seed": 0})
    [('optim.rate', '0.1'), ('seed', '0')]
    """
    pairs = []
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            pairs += flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            pairs.append((f"{prefix}{name}", ", ".join(map(str, value))))
        else:
            pairs.append((f"{prefix}{name}", str(value)))
    return pairs


def file_table(run: Run) -> str:
    """What lies in the run directory, with sizes."""
    meaning = {
        "config.json": "the configuration of the run",
        "environment.json": "versions, devices, revision, command",
        "metrics.jsonl": "every number of the curves, one object a line",
        "checkpoints": "states of the model, newest and best",
        "tensorboard": "the same curves for TensorBoard",
        "probes": "probe scores and the frames of the speaker picture",
        "figures": "the figures of this page as PNG",
        "skipped.txt": "files that could not be used, with reasons",
        "truth.json": "exact mutual information of the source",
    }
    rows = [
        [path.name + ("/" if path.is_dir() else ""), size_phrase(path), meaning.get(path.name, "")]
        for path in sorted(run.workdir.iterdir())
        if path.name != "report.html" and not path.name.startswith(".")
    ]
    return markup.table(["file", "size", "what it is"], rows, style="plain")


def size_phrase(path: Path) -> str:
    """Size of a file or of a whole folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
