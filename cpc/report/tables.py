"""Tables of the report, as HTML."""

import math
from pathlib import Path
from typing import Any

from cpc.report import markup
from cpc.report.image_figures import curve, curve_names, curve_title
from cpc.report.markup import interval_text, number_text
from cpc.report.paper import (
    IMAGENET,
    IMAGENET_SOURCE,
    NUM_CLASSES,
    SOURCE,
    TABLE_1,
    paper_accuracy,
)
from cpc.report.probe_figures import PROBES, feature_title, grouped_rows
from cpc.report.records import Record, Run, rule_name


def offset_table(record: Record, examples: str) -> str:
    """All numbers of each offset of one test record; `examples` are recordings or pictures."""
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
        caption=f"Test {examples}; nats; log N − L is {kind}. Chance of pairwise is 50 %.",
    )


def probe_tables(run: Run) -> list[str]:
    """One table for each task, data and unit, with the paper's Table 1 as a column."""
    steps = {task: probe.get("step") for task, probe in run.probes.items()}
    return [
        (picture_table if unit == "picture" else probe_table)(
            task, data, unit, rows, steps.get(task)
        )
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
    if with_paper and not any(row["features"] == "supervised" for row in rows):
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


def picture_table(
    task: str, data: str, unit: str, rows: list[dict[str, Any]], step: int | None
) -> str:
    """Accuracies of one task on pictures, each with its paired lead over the untrained network."""
    first = rows[0]
    majority, with_five = f"{100 * first['majority']:.1f}", any("top_5" in row for row in rows)
    body = [["always the most frequent class", "", majority, "", *[""] * with_five, "", ""]]
    for row in rows:
        lead: list[float] | None = row.get("versus", {}).get(f"random {row['features']}")
        five = f"{100 * row['top_5']['accuracy']:.1f}" if "top_5" in row else ""
        body.append(
            [
                feature_title(row["features"]),
                PROBES.get(row["probe"], str(row["probe"])),
                f"{100 * row['accuracy']:.1f}",
                f"{100 * row['low']:.1f} to {100 * row['high']:.1f}",
                *[five] * with_five,
                lead_phrase(lead) if lead else "",
                str(row.get("setting", "")),
            ]
        )
    caption = (
        f"{first['num_classes']} classes, {first['num_train']:,} labelled training pictures; "
        f"tested on {first['num_test']:,} pictures"
        + (f", at step {step:,}" if step is not None else "")
        + ". Intervals: bootstrap over test pictures. Over random: points above the untrained "
        "network with the same probe, an interval of the difference on the same pictures."
    )
    head = ["features", "probe", "accuracy %", "95 % interval", *["top-5 %"] * with_five]
    return markup.table(
        [*head, "over random", "setting"],
        body,
        title=f"{task.capitalize()} by {unit}, {data}",
        caption=caption,
        kinds=["", *("strong" if row["features"] in ("z", "c") else "" for row in rows)],
        style="named",
    )


def lead_phrase(versus: list[float]) -> str:
    """A paired difference [value, low, high, ...] in points.

    >>> lead_phrase([0.0123, -0.004, 0.03, 0.2])
    '+1.2 (−0.4 to +3.0)'
    """
    value, low, high = (f"{100 * one:+.1f}".replace("-", "−") for one in versus[:3])
    return f"{value} ({low} to {high})"


def few_labels_table(rows: list[dict[str, Any]]) -> str:
    """Accuracy of each of the features and modes at each share of the labels."""
    if not rows:
        return ""
    shares = sorted({row["fraction"] for row in rows})
    body = []
    for features, mode in curve_names(rows):
        points = {row["fraction"]: row for row in curve(rows, features, mode)}
        cells = [few_labels_cell(points[share]) if share in points else "" for share in shares]
        body.append([curve_title(features, mode), *cells])
    return markup.table(
        ["features", *(f"{100 * share:g} %" for share in shares)],
        body,
        title="Accuracy in percent by share of the labels",
        caption="Half-widths of 95 % intervals over test pictures and, where several were drawn, "
        "subsets of the labels.",
    )


def few_labels_cell(row: dict[str, Any]) -> str:
    """Accuracy and half the width of its interval, in percent.

    >>> few_labels_cell({"accuracy": 0.512, "low": 0.5, "high": 0.53})
    '51.2 ± 1.5'
    """
    return f"{100 * row['accuracy']:.1f} ± {50 * (row['high'] - row['low']):.1f}"


def imagenet_table() -> str:
    """The paper's probes of pictures."""
    return markup.table(
        ["method", "network", "top-1 %", "top-5 %"],
        [[e.method, e.network, percent(e.top_1), percent(e.top_5)] for e in IMAGENET],
        title="The paper's linear probes of ImageNet",
        caption=f"{IMAGENET_SOURCE}. An empty cell is not given.",
        kinds=["strong" if entry.method.startswith("CPC") else "" for entry in IMAGENET],
        style="named",
    )


def percent(value: float | None) -> str:
    """Or nothing."""
    return "" if value is None else f"{value:.1f}"


def audit_table(audit: dict[str, Any]) -> str:
    """What the negatives of a run are, counted before its first step."""
    rows = [
        [
            row["name"].replace("_", " "),
            "–" if row["value"] is None else number_text(row["value"], ",.4g"),
            row["unit"],
            row["meaning"],
        ]
        for row in audit["rows"]
    ]
    return markup.table(
        ["what", "value", "unit", "which is what"],
        rows,
        title="Audit of the negatives",
        caption=f"Of {audit['title']}, before the first step.",
        style="plain",
    )


def provenance(environment: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """How a run was made: command, environment, configuration."""
    command = environment.get("command")
    command = " ".join(command) if isinstance(command, list) else command
    return [
        f"<p>Command: <code>{markup.escape(str(command))}</code></p>" if command else "",
        markup.details("Environment", flat_table(environment)) if environment else "",
        markup.details("Configuration", flat_table(config)) if config else "",
    ]


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


def file_table(run: Run, probes_folder: str) -> str:
    """What lies in the run directory, with sizes; `probes_folder` says what is in probes/."""
    meaning = {
        "config.json": "the configuration of the run",
        "environment.json": "versions, devices, revision, command",
        "metrics.jsonl": "every number of the curves, one object a line",
        "checkpoints": "states of the model, newest and best",
        "tensorboard": "the same curves for TensorBoard",
        "probes": probes_folder,
        "audit.json": "what the negatives are, counted before the first step",
        "exported": "the model to take away, for cpc.models.load",
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
