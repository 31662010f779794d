"""The paper's Figure 6: how fast agents learn with and without CPC, where memory matters or not."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import figure

from cpc.evaluate import area_under_curve
from cpc.report.draw import BLUE, GRAY, add_shared_legend, label, make_figure
from cpc.report.engine import Figure, Section, Table, show
from cpc.results import Difference, Run, over_seeds
from cpc.results.compare import UNKNOWN
from experiments.reproduce.cells import AGENTS
from experiments.reproduce.read import Reproduction
from experiments.reproduce.verdicts import MISSING, judge_pair

TITLE = "Figure 6: agents with and without CPC"
#: Areas that surely differ by less are equal; returns are between -1 and 1.
EQUAL_RETURN = 0.1
ARMS = ("without", "with CPC")


class Task(NamedTuple):
    """A task, and what the paper has of tasks of its kind."""

    variant: str
    claim: str
    relation: str
    """Of the area without CPC to that with."""


TASKS = (
    Task(
        "seen_again",
        "agents: CPC makes learning faster where memory tells what is seen later (4 of 5 levels)",
        "<",
    ),
    Task(
        "always_visible",
        "agents: CPC is neither better nor worse where no memory is needed (lasertag)",
        "=",
    ),
    Task(
        "never_seen",
        "agents: nor where memory is needed and tells nothing that is seen (no row of the paper)",
        "=",
    ),
)


class Learned(NamedTuple):
    """A task as it was learned, without CPC and with it."""

    task: Task
    curves: tuple[dict[int, np.ndarray], ...]
    """Of each arm, by seed: frames and returns (2, points)."""
    areas: tuple[Difference, ...]
    """Under the curves of each arm, over seeds."""
    over: Difference
    """By how much the area with CPC is larger: paired by seed, Student's over seeds."""
    seeds: int
    """That have been run with and without."""
    verdict: str


def read_learned(reproduction: Reproduction) -> list[Learned]:
    """Return each task, as far as its runs have ended."""
    return [compare(task, reproduction.runs) for task in TASKS]


def compare(task: Task, runs: Mapping[str, Sequence[Run]]) -> Learned:
    """Return the curves of a task, their areas, and whether those are as in the paper."""
    without, with_cpc = (read_curves(runs.get(cell, ())) for cell in AGENTS[task.variant])
    arms = tuple(
        {seed: float(area_under_curve(*curve)) for seed, curve in curves.items()}
        for curves in (without, with_cpc)
    )
    areas = tuple(over_seeds([*arm.values()]) if arm else UNKNOWN for arm in arms)
    shared = arms[0].keys() & arms[1].keys()
    over, verdict = UNKNOWN, MISSING
    if shared:
        over = over_seeds([arms[1][seed] - arms[0][seed] for seed in sorted(shared)])
        verdict = judge_pair(over, task.relation, EQUAL_RETURN)
    return Learned(task, (without, with_cpc), areas, over, len(shared), verdict)


def read_curves(runs: Sequence[Run]) -> dict[int, np.ndarray]:
    """Return by seed the frames and returns (2, points) of the runs that have ended."""
    curves = {}
    for run in runs:
        if run.step == run.num_steps and "return" in run.train:
            rows = run.train.dropna(subset=["return"])
            if len(rows) > 1:
                seed = int(run.config.get("seed") or 0)
                curves[seed] = rows[["frames", "return"]].to_numpy(float).T
    return curves


def agents_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 6 as tasks of our own: curves, areas and what became of claims."""
    learned = read_learned(reproduction)
    if not any(curves for one in learned for curves in one.curves):
        return Section(TITLE, ["Not measured."])
    rows = [
        {
            "task": one.task.variant.replace("_", " "),
            **dict(zip((f"area {arm}" for arm in ARMS), one.areas, strict=True)),
            "with − without": one.over,
            "expected": "higher" if one.task.relation == "<" else "equal",
            "seeds": one.seeds,
            "verdict": one.verdict,
        }
        for one in learned
    ]
    formats = dict.fromkeys((f"area {arm}" for arm in ARMS), show_return)
    return Section(
        TITLE,
        [
            "Catch whose ball hides after two of ten steps, and shows again as it lands or does "
            "not, or is always visible. The paper's levels of DeepMind Lab are not here; these "
            "tasks are of their kinds, and say beforehand where CPC can help. "
            "notebooks/studies/hidden_ball has ten seeds, and controls."
        ],
        [Figure("agents", curves_figure(learned), "Learning", CAPTION)],
        [Table("Area under the curve", pd.DataFrame(rows), NOTE,
               formats | {"with − without": show_return})],
    )  # fmt: skip


CAPTION = "Thin: each seed; thick: their mean. By chance the return is −0.78; 1 is the most."
NOTE = (
    "Mean return over all of training. Intervals of 95 % are Student's over seeds, of the "
    f"difference paired by seed; equal is what surely differs by less than {EQUAL_RETURN:g}."
)


def show_return(area: Difference) -> str:
    """Return an area and, where there are seeds, its interval.

    >>> show_return(Difference(-0.5, -0.75, -0.25)), show_return(UNKNOWN)
    ('−0.50 (−0.75 to −0.25)', 'not measured')
    """
    if not np.isfinite(area.value):
        return MISSING
    ends = ""
    if np.isfinite(area.low + area.high):
        ends = f" ({show(area.low, '+.2f')} to {show(area.high, '+.2f')})"
    return show(area.value, "+.2f") + ends


def curves_figure(learned: Sequence[Learned]) -> figure.Figure:
    """Draw learning curves, a panel a task."""
    drawn, panels = make_figure(len(learned), row_height=3.4)
    for axes, one in zip(panels, learned, strict=True):
        for arm, color, curves in zip(ARMS, (GRAY, BLUE), one.curves, strict=True):
            draw_curves(axes, [*curves.values()], color, arm)
        axes.set_ylim(-1, 1)
        label(axes, "thousands of frames", "return", one.task.variant.replace("_", " "))
    add_shared_legend(drawn, panels)
    return drawn


def draw_curves(axes: Any, curves: Sequence[np.ndarray], color: str, name: str) -> None:
    """Draw the curves of seeds, and the mean of those that are as long as the first."""
    for frames, returns in curves:
        axes.plot(frames / 1e3, returns, color=color, linewidth=0.4, alpha=0.6)
    alike = [curve for curve in curves if curve.shape == curves[0].shape]
    if alike:
        frames, returns = np.mean(alike, axis=0)
        axes.plot(frames / 1e3, returns, color=color, linewidth=1.8, label=name)
