"""The page of an agent: returns, what is predicted, what the memory keeps, an episode."""

from pathlib import Path
from typing import Any

import numpy as np

from cpc.files import read_arrays
from cpc.report.draw import BLUE, GRAY, GREEN, INK, ORANGE, add_legend, label, make_figure
from cpc.report.engine import Section, figure_of, write_page
from cpc.report.provenance import made_section
from cpc.report.run_page import draw_bound
from cpc.report.score_section import scores_section
from cpc.report.words import Words
from cpc.results import Run, read_run
from cpc.rl.hidden_ball import COLUMNS, ROWS, SEEN, ball_information

WORDS = Words(
    examples="environments",
    tested="environments",
    features=(),
    titles={"c": "memory, c", "z": "what is seen alone, z"},
)


def write_rl_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png of a run of an agent."""
    workdir = Path(workdir)
    run = read_run(workdir)
    policy, name = run.config.get("policy", {}), run.config.get("environment", {}).get("name", "")
    weight = run.config.get("cpc", {}).get("weight", 0)
    test = run.metrics[run.metrics.split == "test"] if len(run.metrics) else run.metrics
    found = list(test["return"].dropna()) if "return" in test else []
    outcome = "The run has not been evaluated yet."
    if found:
        outcome = f"The trained policy has a mean return of {found[-1]:.2f}."
    bound, episode = bound_figure(run, name), episode_figure(workdir, name)
    figures = figure_of("returns", returns_figure(run), "Return", RETURN)
    figures += figure_of("bound", bound, "What the memory knows of what comes", BOUND)
    figures += figure_of("episode", episode, "An episode, and what the memory believes", EPISODE)
    return write_page(
        workdir,
        "report",
        "Agent",
        f"{policy.get('name')} on {name}, CPC at weight {weight:g}: {workdir.resolve()}",
        sections=[
            Section("", [outcome, *run.problems]),
            Section("Figures", figures=figures),
            Section("What the memory keeps", tables=scores_section(run, WORDS).tables),
            made_section(run.environment, run.config),
        ],
    )


RETURN = (
    "Mean return of the episodes that ended since the previous record, with actions drawn from the "
    "policy."
)
BOUND = (
    "Strict: against the latents of 255 other environments at the same time, each of which could "
    "itself be a positive. Exact: information about the ball alone, by enumeration; the paddle "
    "adds to it."
)
EPISODE = (
    "One row per step. Shade: the probability that a linear probe of the memory gives each column. "
    "Filled circle: the ball while it is seen; ring: the hidden ball; bar: the paddle."
)


def returns_figure(run: Run) -> Any:
    """Draw the return over the frames gone through; None if no episode has ended."""
    train = run.train
    if train.empty or "return" not in train:
        return None
    figure, (axes,) = make_figure(1, row_height=3.0)
    axes.plot(train.frames / 1e3, train["return"], color=BLUE, linewidth=1.2)
    label(axes, "thousands of frames", "return", "")
    return figure


def bound_figure(run: Run, name: str) -> Any:
    """Draw the strict bound by offset beside what is known; None without an evaluation."""
    rows = run.offsets[run.offsets.series == "strict"] if len(run.offsets) else run.offsets
    if not len(rows):
        return None
    rows = rows[rows.step == rows.step.max()]
    figure, (axes,) = make_figure(1, row_height=3.2)
    draw_bound(axes, rows)
    kind, _, variant = name.partition(":")
    if kind == "hidden_ball":
        known = [(k, ball_information(variant, int(k))) for k in rows.offset if k < ROWS]
        axes.plot(*zip(*known, strict=True), color=GREEN, linestyle="-.", label="exact, the ball")
    axes.set_ylim(bottom=min(0.0, rows.bound.min()))
    label(axes, "offset k (steps ahead)", "nats", "")
    add_legend(axes)
    return figure


def episode_figure(workdir: Path, name: str) -> Any:
    """Draw where the ball is, is seen and is believed to be, a row per step; None of others."""
    path = workdir / "episode.npz"
    if not name.startswith("hidden_ball") or not path.exists():
        return None
    arrays = read_arrays(path)
    if "belief_ball" not in arrays:
        return None
    figure, (axes,) = make_figure(1, row_height=4.2)
    belief, seen = arrays["belief_ball"], arrays["observation"]
    hidden = arrays["fact_ball"]
    shown = np.where(hidden[:, None] >= 0, belief, 0.0)
    axes.imshow(shown, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.grid(visible=False)
    pictures = seen[:, : ROWS * COLUMNS].reshape(len(seen), ROWS, COLUMNS).sum(1)
    for row, (picture, place) in enumerate(zip(pictures, hidden, strict=True)):
        if picture.any():
            axes.plot(picture.argmax(), row, "o", color=INK, markersize=9)
        elif place >= 0:
            axes.plot(place, row, "o", color=INK, markersize=9, markerfacecolor="none")
        paddle = seen[row, ROWS * COLUMNS :].argmax()
        axes.plot([paddle - 0.4, paddle + 0.4], [row + 0.38] * 2, color=ORANGE, linewidth=3)
    axes.axhline(SEEN - 0.5, color=GRAY, linewidth=0.8)
    label(axes, "column", "step", "")
    return figure
