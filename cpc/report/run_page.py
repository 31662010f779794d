"""The page of a run: report.html, from its recorded files alone, at any time of the run."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from cpc.files import flatten
from cpc.report import figures
from cpc.report.engine import Figure, Section, Table, show, show_interval, write_page
from cpc.report.scores import (
    METHODS,
    feature_title,
    is_curve,
    row_title,
    score_groups,
    task_title,
)
from cpc.report.sentences import duration, headline_score, last_known, lead_phrase, summary
from cpc.report.words import Words
from cpc.results import (
    Difference,
    Frame,
    Run,
    Score,
    difference,
    evaluations,
    information,
    last_evaluation,
    last_scores,
    read_run,
    show_value,
    to_scores,
    unit_of,
)

#: section(run) -> a part of the page; None where the run has nothing for it.
SectionMaker: TypeAlias = Callable[[Run], Section | None]


def write_report(workdir: str | Path, words: Words, sections: Sequence[SectionMaker] = ()) -> Path:
    """Write report.html and figures/*.png into a run directory.

    Args:
        workdir: of the run.
        words: the nouns of its kind of data.
        sections: what only this kind of data has; they follow the scores.

    Returns:
        The path of the page.

    Raises:
        UserError: the directory holds no run.
    """
    run = read_run(workdir)
    makers: tuple[SectionMaker, ...] = (
        lambda run: Section("", summary(run, words)),
        lambda run: information_section(run, words),
        lambda run: accuracy_section(run, words),
        audit_section,
        lambda run: scores_section(run, words),
        *sections,
        lambda run: health_section(run, words),
        lambda run: provenance_section(run, words),
    )
    made = [section for maker in makers if (section := maker(run)) is not None]
    title, numbers = run.name, headline(run, words)
    return write_page(run.workdir, "report", title, subtitle(run), numbers, made)


def subtitle(run: Run) -> str:
    """Return what kind of thing this is, and from which revision."""
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


def headline(run: Run, words: Words) -> list[tuple[str, str]]:
    """Return the few numbers that are asked for first, (number, meaning)."""
    numbers, bound = [], information(run)
    if bound is not None:
        rows = last_evaluation(run, strict=bound.method == "bound")
        kind = "bound" if bound.method == "bound" else "estimate log N − L, no bound"
        meaning = f"{kind}, mean of {rows.offset.nunique()} offsets"
        ceiling = show(rows.log_n.mean(), ".2f")
        numbers.append((f"{bound.value:.2f} nats", f"{meaning} (ceiling {ceiling})"))
    for (task, data, unit), rows in score_groups(last_scores(run.scores), words).items():
        score = None if is_curve(rows) else headline_score(rows, words)
        if score is not None:
            value = f"{show_value(score.value, score.metric)} {unit_of(score.metric)}".strip()
            what = "" if score.metric == "accuracy" else f", {score.metric}"
            by = f"{task.replace('_', ' ')} by {unit}{what}"
            numbers.append((value, f"{by}, {score.method} on {score.features}, {data}"))
    if len(run.train):
        seconds = last_known(run.train, "seconds")
        time = f" in {duration(seconds)}" if math.isfinite(seconds) else ""
        numbers.append((f"{run.step:,}", f"training steps{time}"))
    return numbers


def figure_of(name: str, made: Any, title: str, caption: str) -> list[Figure]:
    """Return a figure with its words, nothing where there is none."""
    return [] if made is None else [Figure(name, made, title, caption)]


def information_section(run: Run, words: Words) -> Section:
    """Return loss and bound over the training and by offset."""
    curves = figure_of(
        "curves",
        figures.curves_figure(run),
        "Loss and log N − L over training",
        "Loss (left) and log N − L (right), in nats, averaged over offsets; dashed: the ceiling "
        "log N, which is also the InfoNCE loss of guessing: a loss that stays there has learned "
        "nothing. log N − L near log N cannot grow further, whatever the model knows. Only the "
        "curve marked as a bound is a lower bound on mutual information. log N − L far lower on "
        "test than on train is overfitting.",
    )
    bound = figure_of(
        "bound",
        figures.bound_figure(run, words),
        "log N − L at each offset, last evaluation",
        f"Points are test {words.examples} with 95 % intervals over blocks of {words.sequence}s; "
        f"dashed: the ceiling log N. It should fall with the offset: {words.near} is easier to "
        "predict. A point at the ceiling is saturated: it says that the information is at least "
        "about log N. Two panels compare the training rule with one candidate from each "
        f"{words.sequence}, whose independence makes log N − L a bound.",
    )
    details = [
        offset_table(f"{rule}, {direction}" if direction else rule, part, words)
        for rule, rows in evaluations(run).items()
        for direction, part in rows[rows.step == rows.step.max()].groupby("direction", sort=False)
    ]
    return Section("Loss and bound", figures=[*curves, *bound], details=details)


def offset_table(rule: str, rows: Frame, words: Words) -> Table:
    """Return all numbers of each offset of an evaluation."""
    import pandas as pd

    has_bound = rows.bound.notna()
    frame = pd.DataFrame(
        {
            "offset k": rows.offset,
            "N": rows.n,
            "log N": rows.log_n,
            "loss": rows.offset_loss,
            "log N − L": rows.bound,
            "95 % interval": list(zip(rows.bound_low, rows.bound_high, strict=True)),
            "top-1 %": 100 * rows.acc_top1,
            "chance %": 100 / rows.n.where(rows.n > 0),
            "pairwise %": 100 * rows.acc_pairwise,
            "state": rows.state.where(has_bound, "–"),
        }
    )
    if "frames_per_prediction" in rows and rows.frames_per_prediction.notna().any():
        frame["frames aligned to it"] = rows.frames_per_prediction
    kind = "log N − L is an estimate, no bound"
    if not has_bound.any():
        kind = "this loss has no log N"
        frame = frame.drop(columns=["log N", "log N − L", "95 % interval", "state"])
    elif rows.is_bound.all():
        kind = "log N − L is a lower bound on the information"
    return Table(
        f"All numbers of each offset: rule “{rule}”, step {rows.step.max():,}",
        frame,
        f"Test {words.examples}; nats; {kind}. Chance of pairwise is 50 %.",
        {
            "N": ",.0f",
            "log N": ".2f",
            "loss": ".3f",
            "log N − L": ".3f",
            "95 % interval": lambda ends: show_interval(ends[0], ends[1], ".3f"),
            "top-1 %": ".1f",
            "chance %": ".2g",
            "pairwise %": ".1f",
            "frames aligned to it": ".2f",
        },
    )


def accuracy_section(run: Run, words: Words) -> Section:
    """Return how often the positive wins, by offset."""
    return Section(
        "Accuracy by offset",
        figures=figure_of(
            "accuracy",
            figures.accuracy_figure(run, words),
            "Accuracy of predicting the positive, by offset (the paper's Figure 3)",
            f"How often the true {words.target} wins, on test {words.examples}. Left: against all "
            "negatives at once; right: against one negative at a time. The paper does not say "
            "which it plots, so both readings are here; dotted: chance. Expect a high start and a "
            "fall with the offset. Top-1 depends on N and compares only between runs with the "
            "same N.",
        ),
    )


def audit_section(run: Run) -> Section | None:
    """Return who the negatives of a run are, counted before its first step."""
    import pandas as pd

    if run.audit is None:
        return None
    rows = [
        {
            "what": str(row.get("name", "")).replace("_", " "),
            "value": math.nan if row.get("value") is None else row["value"],
            "unit": str(row.get("unit", "")),
            "which is what": str(row.get("meaning", "")),
        }
        for row in run.audit["rows"]
        if isinstance(row, dict)
    ]
    note = f"Of {run.audit.get('title', 'the negatives')}, before the first step."
    return Section("Negatives", tables=[Table("Audit of the negatives", pd.DataFrame(rows), note)])


def scores_section(run: Run, words: Words) -> Section:
    """Return what evaluators measured: figures, a table for each task, learning curves."""
    title, last = "What the representation knows", last_scores(run.scores)
    if not len(last):
        missing = "No probe is recorded yet; run the probe command on this directory to add them."
        return Section(title, [missing])
    bars = figure_of(
        "scores",
        figures.scores_figure(last, words),
        "Scores of frozen features",
        f"Bars: scores on test {words.tested}; black lines: 95 % intervals over {words.tested}; "
        "dotted: the score without knowledge, such as that of always answering the most frequent "
        "class. CPC is worth its training where it is better than the same network at random "
        f"initialization, and useful where it is better than {baseline_phrase(words)}.",
    )
    progress = figure_of(
        "progress",
        figures.progress_figure(run.scores, words),
        "Scores during training",
        f"Of what was measured at evaluations along the way, on test {words.tested}; dashed: other "
        "methods than the linear probe. A curve that still improves asks for a longer training; "
        "one that gets worse while the bound rises tells of features that serve the prediction "
        "and not the task.",
    )
    curves = [
        Figure(
            f"curve_{task}_{data}",
            figure,
            f"{task_title(task)} of {data}: scores against labels",
            "Of a probe of frozen features, or of the whole network, that sees only so many of the "
            "labels. Lines: 95 % intervals. Features are worth their training where their curve "
            "gets as good with fewer labels as that of the supervised network.",
        )
        for task, data, figure in figures.curve_figures(last, words)
    ]
    tables = [
        (curve_table if is_curve(rows) else score_table)(group, rows, words)
        for group, rows in score_groups(last, words).items()
    ]
    return Section(title, figures=[*bars, *progress, *curves], tables=tables)


def baseline_phrase(words: Words) -> str:
    """Return the baselines in words."""
    titles = [feature_title(name, words) for name in words.baselines]
    return " and ".join(titles) if titles else "its input"


def score_table(group: tuple[str, str, str], rows: Frame, words: Words) -> Table:
    """Return the scores of a task, each beside the untrained network's with the same method."""
    import pandas as pd

    scores = to_scores(rows)
    by_method: dict[tuple, list[Score]] = {}
    for score in scores:
        by_method.setdefault((score.features, score.method), []).append(score)
    first, lines, strong = scores[0], [], []
    metrics = list(dict.fromkeys(score.metric for score in scores))
    if first.chance is not None:
        line = {"features": "without knowledge", column_of(first.metric): first.chance}
        lines.append(line | {"95 % interval": None})
    for (features, method), found in by_method.items():
        strong += [len(lines)] * (features in words.features)
        line: dict[str, Any] = {
            "features": feature_title(features, words),
            "method": METHODS.get(method, method),
        }
        for score in found:
            line[column_of(score.metric)] = score.value
        line["95 % interval"] = (found[0].low, found[0].high, found[0].metric)
        if lead := over_untrained(found[0], scores):
            line["over untrained"] = (*lead[:3], found[0].metric)
        lines.append(line | {"setting": found[0].setting})
    order = ("features", "method", *map(column_of, metrics), "95 % interval", "over untrained")
    columns = [name for name in (*order, "setting") if any(name in line for line in lines)]
    frame = pd.DataFrame([{name: line.get(name) for name in columns} for line in lines])
    formats: dict[str, Any] = {
        column_of(metric): lambda value, metric=metric: shown(value, metric) for metric in metrics
    }
    formats["95 % interval"] = show_ends
    formats["over untrained"] = lambda lead: lead_phrase(lead[:3], lead[3]) if lead else ""
    return Table(table_title(*group), frame, score_note(first, rows, words), formats, strong)


def column_of(metric: str) -> str:
    """Return the head of a column.

    >>> column_of("error rate")
    'error rate, %'
    """
    return f"{metric}, {unit_of(metric)}" if unit_of(metric) not in ("", metric) else metric


def shown(value: float | int | None, metric: str) -> str:
    """Return a value, nothing where there is none."""
    return "" if value is None or math.isnan(value) else show_value(value, metric)


def show_ends(ends: tuple[float | None, float | None, str] | None) -> str:
    """Return an interval, nothing where there is none."""
    if not isinstance(ends, tuple) or ends[0] is None or ends[1] is None:
        return ""
    return f"{show_value(ends[0], ends[2])} to {show_value(ends[1], ends[2])}"


def over_untrained(score: Score, scores: Sequence[Score]) -> Difference | None:
    """Return how much larger a score is than the untrained network's with the same method."""
    for other in scores:
        same = (other.method, other.metric) == (score.method, score.metric)
        if same and other.features == f"random {score.features}":
            return difference(score, other)
    return None


def table_title(task: str, data: str, unit: str) -> str:
    """Return the title of a task's table."""
    return f"{task_title(task)} by {unit}, {data}"


def score_note(first: Score, rows: Frame, words: Words) -> str:
    """Return what the scores of a table were measured on."""
    parts = []
    if first.num_train is not None:
        parts.append(f"{first.num_train:,} labeled items to fit on")
    if first.num_test is not None:
        parts.append(f"tested on {first.num_test:,} {first.unit}s")
    note = f"{', '.join([*parts, f'at step {first.step:,}']).capitalize()}."
    if not rows.higher_is_better.all():
        note += " Lower is better."
    if rows.low.notna().any():
        note += f" Intervals: over test {words.tested}."
    if any(name.startswith("random") for name in rows.features):
        note += (
            " Over untrained: the difference to the same network at random initialization with "
            f"the same method, on the same {words.tested} where they were recorded."
        )
    return note


def curve_table(group: tuple[str, str, str], rows: Frame, words: Words) -> Table:
    """Return scores by number of labels, a row for each way to use them."""
    import pandas as pd

    counts = rows.drop_duplicates("num_train").sort_values("num_train")
    heads = {
        row.num_train: f"{row.num_train:,.0f}" + (f" ({row.setting})" if row.setting else "")
        for row in counts.itertuples()
    }
    lines = []
    for (features, method), line in rows.groupby(["features", "method"], sort=False):
        cells = {heads[score.num_train]: score for score in line.itertuples()}
        values = {
            head: (one.value, one.low, one.high, one.metric) if (one := cells.get(head)) else None
            for head in heads.values()
        }
        lines.append({"features": row_title(features, method, words), **values})
    note = "Half-widths of 95 % intervals over test items and, where several were drawn, subsets."
    formats = dict.fromkeys(heads.values(), show_half_width)
    metric = rows.metric.iloc[0]
    title = f"{table_title(*group)}: {column_of(metric)} by number of labels"
    return Table(title, pd.DataFrame(lines), note, formats)


def show_half_width(cell: tuple[float, float, float, str] | None) -> str:
    """Return a value and half the width of its interval.

    >>> show_half_width((0.512, 0.5, 0.53, "accuracy"))
    '51.2 ± 1.5'
    """
    if not isinstance(cell, tuple):
        return ""
    value, low, high, metric = cell
    half = (high - low) / 2
    return show_value(value, metric) + (
        f" ± {show_value(half, metric)}" if math.isfinite(half) else ""
    )


def health_section(run: Run, words: Words) -> Section:
    """Return what tells of collapse, of a slow machine, and of a learning rate too high."""
    spread = figure_of(
        "collapse",
        figures.spread_figure(run),
        "Spread of the representation",
        "Standard deviation (mean over dimensions) and effective rank, the exponential of the "
        f"entropy of the covariance's normalized eigenvalues, on test {words.examples}. Either one "
        "falling towards zero means collapse: all inputs get nearly the same features.",
    )
    speed = figure_of(
        "speed",
        figures.speed_figure(run),
        "Speed and optimization",
        "Steps a second, learning rate and norm of the gradient while training. A step rate that "
        "dips tells of evaluations or of another job on the machine; a gradient norm that jumps "
        "tells of a learning rate too high.",
    )
    return Section("Health of the run", figures=[*spread, *speed])


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
