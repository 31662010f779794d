"""The page of a run of words: the loss, the scores, neighbours, a map of the vectors."""

from pathlib import Path

import pandas as pd

from cpc.files import read_object
from cpc.report.draw import BLUE, INK, label, make_figure
from cpc.report.engine import Section, Table, figure_of, write_page
from cpc.report.provenance import made_section
from cpc.results import read_run, read_scores


def write_words_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png of a run of words."""
    workdir = Path(workdir)
    run = read_run(workdir)
    objective, model = run.config.get("objective", {}), run.config.get("model", {})
    scores = read_scores(workdir)
    drawn = map_figure(workdir)
    figures = figure_of("loss", loss_figure(run.train), "Loss", LOSS)
    figures += figure_of("map", drawn, "The 300 most frequent words", MAP)
    is_flat = not drawn and (workdir / "vectors.npz").exists()
    tables = [score_table(scores)] if scores else []
    if found := read_object(workdir / "neighbours.json", []):
        rows = [{"word": word, "nearest": ", ".join(near)} for word, near in found.items()]
        tables.append(Table("Nearest words by cosine", pd.DataFrame(rows)))
    lead = f"{model.get('name')} by {objective.get('name')}, noise {objective.get('noise')}"
    return write_page(
        workdir,
        "report",
        "Words",
        f"{lead}: {workdir.resolve()}",
        sections=[
            Section("", run.problems),
            Section("What it knows", tables=tables),
            Section("Figures", [NO_MAP] if is_flat else [], figures=figures),
            made_section(run.environment, run.config),
        ],
    )


LOSS = "Nats per pair, by the objective; losses of different objectives are not comparable."
NO_MAP = "The map was left out: the vectors are equal, not finite or of one dimension."
MAP = "The two axes of greatest variance of the input vectors."


def loss_figure(train):
    """Draw the loss over the words gone through; None without records."""
    if train.empty:
        return None
    figure, (axes,) = make_figure(1, row_height=3.2)
    axes.plot(train.words / 1e6, train.loss, color=BLUE, linewidth=1.4)
    label(axes, "millions of words", "nats a pair", "")
    return figure


def map_figure(workdir):
    """Draw the words where their vectors are; None if the run did not get so far."""
    found = read_object(workdir / "map.json", [])
    if not found:
        return None
    figure, (axes,) = make_figure(1, row_height=6.5)
    for (x, y), word in list(zip(found["xy"], found["words"], strict=True))[::2]:
        axes.text(x, y, word, fontsize=7, color=INK, ha="center", va="center")
    xs, ys = zip(*found["xy"], strict=True)
    axes.set_xlim(min(xs), max(xs))
    axes.set_ylim(min(ys), max(ys))
    label(axes, "first axis", "second axis", "")
    return figure


def score_table(scores):
    """Return the scores, a row each."""
    rows = [
        {
            "of": score.task, "on": score.data, "by": score.method, "value": digits(score.value),
            "95 % interval": "" if score.low is None or score.high is None
            else f"{digits(score.low)} to {digits(score.high)}",
            "of so many": score.num_test, "note": score.setting,
        }
        for score in scores
    ]  # fmt: skip
    return Table("Scores", pd.DataFrame(rows))


def digits(value: float) -> str:
    """Return three digits, or all before the point.

    >>> digits(0.58349), digits(11920.4)
    ('0.583', '11,920')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
