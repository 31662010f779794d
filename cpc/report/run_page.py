"""The page of a run, report.html, from its recorded files alone, at any time of the run."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from cpc import results
from cpc.report import figures
from cpc.report.engine import (
    Format,
    Section,
    Table,
    duration,
    figure_of,
    show_interval,
    write_page,
)
from cpc.report.provenance import provenance_section
from cpc.report.score_section import scores_section
from cpc.report.scores import Headline, headlines
from cpc.report.sentences import summary
from cpc.report.words import Words
from cpc.results import Frame, Run, read_run

#: section(run) -> a part of the page; None if the run has nothing for it.
SectionMaker: TypeAlias = Callable[[Run], Section | None]


def write_report(workdir: str | Path, words: Words, sections: Sequence[SectionMaker] = ()) -> Path:
    """Write report.html and figures/*.png into a run directory, and return the path of the page.

    Args:
        workdir: of the run.
        words: the nouns of its kind of data.
        sections: those of its kind of data alone, which follow the scores.

    Raises:
        UserError: the directory holds no run.
    """
    run = read_run(workdir)
    found = headlines(run.scores, words)
    made = [
        Section("", summary(run, found, words)),
        information_section(run, words),
        accuracy_section(run, words),
        audit_section(run),
        scores_section(run, words),
        *(maker(run) for maker in sections),
        health_section(run, words),
        provenance_section(run, words),
    ]
    made = [section for section in made if section is not None]
    return write_page(run.workdir, "report", run.name, subtitle(run), headline(run, found), made)


def subtitle(run: Run) -> str:
    """Return the kind of page, the data, the revision and the directory."""
    revision = str(run.environment.get("git_revision") or "")
    data = run.config.get("data")
    source = (data.get("source") or data.get("name")) if isinstance(data, dict) else data
    parts = [
        "A run of contrastive predictive coding (van den Oord, Li, Vinyals 2018)",
        f"data: {source}" if source else "",
        f"revision {revision[:12]}" if revision else "",
        str(run.workdir.resolve()),
    ]
    return " · ".join(part for part in parts if part)


def headline(run: Run, found: Sequence[Headline]) -> list[tuple[str, str]]:
    """Return the most important numbers, (number, meaning)."""
    numbers, bound = [], results.information(run)
    if bound is not None:
        rows = results.last_evaluation(run, strict=bound.method == "bound")
        kind = "bound" if bound.method == "bound" else "estimate log N − L, not a bound"
        each = "predictions" if rows.direction.nunique() > 1 else "offsets"
        meaning = f"{kind}, mean of {rows.bound.notna().sum()} {each}"
        ceiling = f"ceiling {rows.log_n.mean():.2f}"
        numbers.append((f"{bound.value:.2f} nats", f"{meaning} ({ceiling})"))
    for score, *_ in found:
        value = results.with_unit(score.value, score.metric)
        what = "" if score.metric == "accuracy" else f", {score.metric}"
        by = f"{score.task.replace('_', ' ')} by {score.unit}{what}"
        numbers.append((value, f"{by}, {score.method} on {score.features}, {score.data}"))
    if len(run.train):
        seconds = results.last_known(run.train, "seconds")
        time = f" in {duration(seconds)}" if math.isfinite(seconds) else ""
        numbers.append((f"{run.step:,}", f"training steps{time}"))
    return numbers


def information_section(run: Run, words: Words) -> Section:
    """Return loss and bound over the training and by offset."""
    curves = figure_of(
        "curves",
        figures.curves_figure(run),
        "Loss and log N − L over training",
        "Loss and log N − L in nats, averaged over offsets. The dashed line is the "
        "ceiling log N, which is also the InfoNCE loss of guessing: while the loss stays there, "
        "nothing has been learned. Close to log N, log N − L cannot grow, whatever the model "
        "knows. Only the curve labeled as a bound is a lower bound on mutual information. If log "
        "N − L is far lower on test than on training data, the model overfits.",
    )
    bound = figure_of(
        "bound",
        figures.bound_figure(run, words),
        "log N − L at each offset, last evaluation",
        f"Measured on test {words.examples}, with 95 % intervals over {words.sequence}s, each an "
        "anchor and a negative of others; the dashed line is the ceiling log N. Values should fall "
        "with the offset, because "
        f"{words.near} is easier to predict. A point at the ceiling is saturated and shows only "
        "that the information is at least about log N. Where there are two rules, one is the "
        f"training's and the other takes one candidate from each {words.sequence}: these are "
        "independent, which makes log N − L a bound.",
    )
    details = [
        offset_table(f"{rule}, {direction}" if direction else rule, part, words)
        for rule, rows in results.evaluations(run).items()
        for direction, part in rows[rows.step == rows.step.max()].groupby("direction", sort=False)
    ]
    return Section("Loss and bound", figures=[*curves, *bound], details=details)


def offset_table(rule: str, rows: Frame, words: Words) -> Table:
    """Return all numbers of each offset of an evaluation."""
    import pandas as pd

    has_bound = rows.bound.notna()
    interval = list(zip(rows.bound_low, rows.bound_high, strict=True))
    columns: dict[str, tuple[Any, Format]] = {
        "offset k": (rows.offset, ""),
        "N": (rows.n, ",.0f"),
        "log N": (rows.log_n, ".2f"),
        "loss": (rows.offset_loss, ".3f"),
        "log N − L": (rows.bound, ".3f"),
        "95 % interval": (interval, lambda ends: show_interval(ends[0], ends[1], ".3f")),
        "top-1 %": (100 * rows.acc_top1, ".1f"),
        "chance %": (100 / rows.n.where(rows.n > 0), ".2g"),
        "pairwise %": (100 * rows.acc_pairwise, ".1f"),
        "state": (rows.state.where(has_bound, "–"), ""),
    }
    if "frames_per_prediction" in rows and rows.frames_per_prediction.notna().any():
        columns["frames aligned to it"] = rows.frames_per_prediction, ".2f"
    kind = "log N − L is an estimate, not a bound"
    if not has_bound.any():
        kind = "this loss has no log N"
        for name in ("log N", "log N − L", "95 % interval", "state"):
            del columns[name]
    elif rows.is_bound.all():
        kind = "log N − L is a lower bound on the information"
    return Table(
        f"All numbers of each offset: rule “{rule}”, step {rows.step.max():,}",
        pd.DataFrame({name: values for name, (values, _) in columns.items()}),
        f"Test {words.examples}, in nats; {kind}. Pairwise chance is 50 %.",
        {name: style for name, (_, style) in columns.items()},
    )


def accuracy_section(run: Run, words: Words) -> Section:
    """Return how often the positive scores highest, by offset."""
    return Section(
        "Accuracy by offset",
        figures=figure_of(
            "accuracy",
            figures.accuracy_figure(run, words),
            "Accuracy of predicting the positive, by offset (the paper's Figure 3)",
            f"How often the true {words.target} scores highest, on test {words.examples}: in the "
            "first panel against all negatives at once, in the second against one at a time. The "
            "paper does not say which of the two it plots. The dotted line is chance. Accuracy "
            "should start high and fall with the offset. Top-1 depends on N, so compare it only "
            "between runs with the same N.",
        ),
    )


def audit_section(run: Run) -> Section | None:
    """Return the audit of the negatives, counted before the first step."""
    import pandas as pd

    if run.audit is None:
        return None
    rows = [
        {
            "what": str(row.get("name", "")).replace("_", " "),
            "value": math.nan if row.get("value") is None else row["value"],
            "unit": str(row.get("unit", "")),
            "meaning": str(row.get("meaning", "")),
        }
        for row in run.audit["rows"]
    ]
    note = f"Of {run.audit.get('title', 'the negatives')}, before the first step."
    return Section("Negatives", tables=[Table("Audit of the negatives", pd.DataFrame(rows), note)])


def health_section(run: Run, words: Words) -> Section:
    """Return figures that show a collapse, a slow machine, or too high a learning rate."""
    spread = figure_of(
        "collapse",
        figures.spread_figure(run),
        "Spread of the representation",
        f"Measured on test {words.examples}: the standard deviation, averaged over dimensions, and "
        "the effective rank, the exponential of the entropy of the covariance's normalized "
        "eigenvalues. If the deviation falls towards zero or the rank towards one, the "
        "representation has collapsed: all inputs get nearly the same features.",
    )
    speed = figure_of(
        "speed",
        figures.speed_figure(run),
        "Speed and optimization",
        "Steps per second, learning rate and gradient norm during training. Dips in speed come "
        "from evaluations or from other jobs on the machine; jumps in the gradient norm suggest "
        "that the learning rate is too high.",
    )
    return Section("Health of the run", figures=[*spread, *speed])
