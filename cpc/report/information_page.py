"""The page of a run that estimated mutual information where the truth, or a law, is known."""

import json
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from cpc.report import markup
from cpc.report.draw import save_picture
from cpc.report.information_figures import (
    LAWS,
    NAMES,
    Row,
    consistency_figure,
    present,
    staircase_figure,
    tasks_figure,
)
from cpc.report.records import Record, read_json, read_lines
from cpc.report.tables import provenance
from cpc.types import UserError

TITLES = {
    "staircase": "The staircase: estimators train while the information rises",
    "tasks": "Benchmark tasks of known information",
    "consistency": "Self-consistency on pictures",
}
HOW_TO_READ = {
    "staircase": (
        "Ink: the truth. Dashed: the ceiling, above which no batch of this size can read. Gray: "
        "the estimator with the exact log ratio, the best that training can hope for. Shaded: one "
        "standard deviation from batch to batch. A lower bound that lies low is honest; a value "
        "above the truth comes from an estimator that is no bound, or from few batches."
    ),
    "tasks": (
        "Each cell is an estimate, the mean over seeds; blue lies below the truth, red above. "
        "KSG and CCA train nothing. Student's tasks have no correlation: CCA misses what is "
        "there, or chases a few far points. No task here is near the ceiling of InfoNCE."
    ),
    "consistency": (
        "The truth is not known, but laws are. Left: y keeps the top rows of the picture x; the "
        "information must grow with them. Middle: a copy of y with fewer rows adds nothing. Right: "
        "two independent pictures hold twice the information of one. An estimator at its "
        "ceiling breaks the last law, one of large variance any of them."
    ),
}


def write_information_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png from metrics.jsonl and table.json of a run.

    Raises:
      UserError: the directory has no table, as no run that is done.
    """
    workdir = Path(workdir)
    config = read_json(workdir / "config.json") or {}
    if not (workdir / "table.json").exists():
        raise UserError(f"{workdir} has no table.json: run the command again to its end")
    table = json.loads((workdir / "table.json").read_text())
    protocol = str(config.get("protocol"))
    records = read_lines(workdir / "metrics.jsonl")
    pictures, tables = PARTS[protocol](records, table)
    parts = []
    for name, (title, figure) in pictures.items():
        if figure is not None:
            parts.append(save_picture(workdir, name, figure, title, HOW_TO_READ[protocol]))
    environment = read_json(workdir / "environment.json") or {}
    body = "\n".join(
        [
            f"<h1>{markup.escape(TITLES[protocol])}</h1>",
            markup.paragraph(str(workdir.resolve()), "lead"),
            markup.section("Figures", *parts),
            markup.section("Numbers", *tables),
            markup.section("How it was made", *provenance(environment, config)),
        ]
    )
    path = workdir / "report.html"
    path.write_text(markup.page(TITLES[protocol], body), encoding="utf-8")
    return path


Pictures = dict[str, tuple[str, Figure | None]]


def staircase_parts(records: list[Record], table: list[Row]) -> tuple[Pictures, list[str]]:
    """A picture and a table for each task, the exact critic in both."""
    tasks: list[str] = [t for t in dict.fromkeys(row["task"] for row in table) if t != "any"]
    words = {"gaussian": "Correlated Gaussians", "cubic": "Correlated Gaussians, y cubed"}
    titles = {task: words.get(task, task) for task in tasks}
    train = [record for record in records if record.get("split") == "train"]
    pictures = {
        f"staircase_{task}": (titles[task], staircase_figure(train, table, task)) for task in tasks
    }
    tables = [
        level_table(titles[task], [r for r in table if r["task"] in (task, "any")])
        for task in tasks
    ]
    return pictures, tables


def level_table(title: str, rows: list[Row]) -> str:
    """A row an estimator and critic, a column a level: value, spread, and bias."""
    levels = list(dict.fromkeys(row["truth"] for row in rows))
    lines: dict[tuple[str, str], dict[float, Row]] = {}
    for row in rows:
        lines.setdefault((row["estimator"], row["critic"]), {})[row["truth"]] = row
    order = list(NAMES)
    lines = dict(sorted(lines.items(), key=lambda item: order.index(item[0][0])))
    body = []
    for (estimator, critic), cells in lines.items():
        one = next(iter(cells.values()))
        ceiling = "none" if one["ceiling"] is None else f"{one['ceiling']:.2f}"
        numbers = [level_cell(cells[truth]) for truth in levels]
        body.append([NAMES[estimator], critic, one["label"], ceiling, *numbers])
    head = ["estimator", "critic", "claim", "ceiling", *(f"{truth:g} nats" for truth in levels)]
    return markup.table(
        head,
        body,
        title=title,
        caption="Value ± spread from batch to batch, and bias, over the last half of each level.",
        style="named",
    )


def level_cell(row: Row) -> str:
    """Value, spread and bias as they are read.

    >>> level_cell({"value": 1.8, "spread": 0.2, "bias": -0.2})
    '1.80 ± 0.20 (−0.20)'
    """
    if row["value"] is None or abs(row["value"]) >= 100:
        return "diverged"
    spread = "–" if row["spread"] is None else f"{row['spread']:.2f}"
    return f"{row['value']:.2f} ± {spread} ({row['bias']:+.2f})".replace("-", "−")


def tasks_parts(records: list[Record], table: list[Row]) -> tuple[Pictures, list[str]]:
    """The chart of all tasks, and its numbers."""
    names = present(table)
    lines: dict[str, dict[str, Row]] = {}
    for row in table:
        lines.setdefault(row["task"], {})[row["estimator"]] = row
    body = [
        [task, f"{cells[names[0]]['truth']:.3f}", *(level_cell(cells[name]) for name in names)]
        for task, cells in lines.items()
    ]
    claims = {NAMES[name]: next(iter(lines.values()))[name]["label"] for name in names}
    numbers = markup.table(
        ["task", "truth", *claims],
        body,
        title="Estimates",
        caption="Mean ± standard deviation over seeds, and bias, nats. "
        + "; ".join(f"{name}: {claim}" for name, claim in claims.items())
        + ".",
    )
    return {"tasks": ("Estimates beside the truth", tasks_figure(table))}, [numbers]


def consistency_parts(records: list[Record], table: list[Row]) -> tuple[Pictures, list[str]]:
    """The three laws, and the numbers under each."""
    tables = []
    for law, title, _ in LAWS:
        rows = [row for row in table if row["law"] == law]
        kept = list(dict.fromkeys(row["rows"] for row in rows))
        names = present(rows)
        cells = {(row["estimator"], row["rows"]): row for row in rows}
        claims = {row["estimator"]: row["label"] for row in rows}
        body = [
            [
                NAMES[name],
                claims[name],
                *(ratio_cell(cells[name, k]) for k in kept),
            ]
            for name in names
        ]
        tables.append(
            markup.table(
                ["estimator", "claim", *(f"{k} rows" for k in kept)],
                body,
                title=title[0].upper() + title[1:],
                caption="Ratio of estimates, and the estimate itself in nats.",
                style="named",
            )
        )
    figure = consistency_figure(table)
    return {"consistency": ("Three laws that information obeys", figure)}, tables


def ratio_cell(row: Row) -> str:
    """The ratio, and the estimate that it was taken of.

    >>> ratio_cell({"ratio": 1.02, "value": 4.0}), ratio_cell({"ratio": None, "value": None})
    ('1.02 (4.00)', 'diverged')
    """
    if row["ratio"] is None:
        return "diverged"
    return f"{row['ratio']:.2f} ({row['value']:.2f})".replace("-", "−")


PARTS: dict[str, Callable[[list[Record], list[Row]], tuple[Pictures, list[str]]]] = {
    "staircase": staircase_parts,
    "tasks": tasks_parts,
    "consistency": consistency_parts,
}
