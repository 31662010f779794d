"""Report page sections for agents: returns, an episode, and information about the hidden ball."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cpc.files import read_arrays
from cpc.report.draw import BLUE, GRAY, INK, ORANGE, label, make_figure
from cpc.report.engine import Section, Table, figure_of
from cpc.results import Run
from cpc.rl.hidden_ball import COLUMNS, ROWS, SEEN, ball_information


def agent_section(run: Run) -> Section:
    """Return a section with the agent's returns, an episode and the information about the ball."""
    config, name = run.config, run.config.get("environment", {}).get("name", "")
    weight = config.get("cpc", {}).get("weight", 0)
    lead = f"{config.get('policy', {}).get('name')} on {name}, CPC at weight {weight:g}."
    test = run.metrics[run.metrics.split == "test"] if len(run.metrics) else run.metrics
    found = list(test["return"].dropna()) if "return" in test else []
    outcome = "The run has not been evaluated yet."
    if found:
        outcome = f"The trained policy has a mean return of {found[-1]:.2f}."
    figures = figure_of("returns", returns_figure(run), "Return", RETURN)
    episode = episode_figure(run.workdir, name)
    figures += figure_of("episode", episode, "An episode, and the belief of the memory", EPISODE)
    return Section("Agent", [lead, outcome], figures, ball_tables(run, name))


RETURN = (
    "Mean return of the episodes that ended since the previous record, with actions drawn from the "
    "policy."
)
EPISODE = (
    "One row per step. Shades show the probability of each column by a linear probe of the memory. "
    "Filled circles show the visible ball, rings the hidden ball, and bars the paddle."
)
BALL = (
    "Computed by enumeration for the ball alone; the paddle adds information. Candidates of the "
    "bound are latents of 255 other environments at the same time, distributed as the positive."
)


def ball_tables(run: Run, name: str) -> list[Table]:
    """Return a table of the exact mutual information between the hidden ball's past and future."""
    kind, _, variant = name.partition(":")
    offsets = [int(k) for k in sorted(run.offsets.offset.unique()) if k < ROWS]
    if kind != "hidden_ball" or not offsets:
        return []
    nats = [ball_information(variant, k) for k in offsets]
    frame = pd.DataFrame({"offset k (steps ahead)": offsets, "nats": nats})
    return [Table("Exact information about the ball", frame, BALL, {"nats": ".3f"})]


def returns_figure(run: Run) -> Any:
    """Plot the return over frames, or return None if no episode has ended."""
    train = run.train
    if train.empty or "return" not in train:
        return None
    figure, (axes,) = make_figure(1, row_height=3.0)
    axes.plot(train.frames / 1e3, train["return"], color=BLUE, linewidth=1.2)
    label(axes, "thousands of frames", "return", "")
    return figure


def episode_figure(workdir: Path, name: str) -> Any:
    """Draw the ball and the belief about it by step, or return None if no ball is recorded."""
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
    for row, (picture, column) in enumerate(zip(pictures, hidden, strict=True)):
        if picture.any():
            axes.plot(picture.argmax(), row, "o", color=INK, markersize=9)
        elif column >= 0:
            axes.plot(column, row, "o", color=INK, markersize=9, markerfacecolor="none")
        paddle = seen[row, ROWS * COLUMNS :].argmax()
        axes.plot([paddle - 0.4, paddle + 0.4], [row + 0.38] * 2, color=ORANGE, linewidth=3)
    axes.axhline(SEEN - 0.5, color=GRAY, linewidth=0.8)
    label(axes, "column", "step", "")
    return figure
