"""Figures of a reproduction: the paper's 2 (one can point at it) and 3, and two that it lacks."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from cpc.report.comparison import Estimate
from cpc.report.draw import BLUE, GRAY, GREEN, INK, RED, add_legend, label, make_figure
from cpc.report.markup import escape
from cpc.report.records import Picture, Record
from cpc.report.reproduction import Offsets

#: The paper's Figure 2 shows ten of 251 speakers.
NUM_SPEAKERS, MAX_POINTS = 10, 1000
WIDTH, HEIGHT, MARGIN = 720, 480, 14
#: Milliseconds from latent to latent.
FRAME_MS = 10

SCRIPT = """
<script>
(() => {
  const root = document.currentScript.previousElementSibling;
  const points = [...root.querySelectorAll("circle")], word = root.querySelector("output");
  const rest = word.textContent;
  let only = null;
  const paint = (shown) => points.forEach((p) => {
    p.style.opacity = shown === null || p.dataset.speaker === shown ? 0.85 : 0.08;
  });
  const say = (text) => { word.textContent = text || rest; };
  points.forEach((p) => {
    p.onpointerenter = () => { paint(p.dataset.speaker); say(names[p.dataset.speaker]); };
    p.onpointerleave = () => { paint(only); say(only && names[only]); };
  });
  const buttons = [...root.querySelectorAll("button")];
  const names = Object.fromEntries(buttons.map((b) => [b.dataset.speaker, b.dataset.name]));
  buttons.forEach((b) => {
    b.onclick = () => {
      only = only === b.dataset.speaker ? null : b.dataset.speaker;
      buttons.forEach((o) => o.setAttribute("aria-pressed", o.dataset.speaker === only));
      paint(only); say(only && names[only]);
    };
  });
})();
</script>
"""


def chosen_speakers(picture: Picture) -> Picture:
    """The points of the speakers who have most of them, at most `MAX_POINTS`."""
    counts = np.bincount(picture.speaker, minlength=len(picture.names))
    speakers = np.sort(np.argsort(-counts, kind="stable")[:NUM_SPEAKERS])
    rows = np.flatnonzero(np.isin(picture.speaker, speakers))[:MAX_POINTS]
    return picture._replace(features=picture.features[rows], speaker=picture.speaker[rows])


def speakers_picture(points: np.ndarray, speaker: np.ndarray, names: Sequence[str]) -> str:
    """Points (n, 2) that say whose they are when pointed at; buttons show one speaker alone."""
    low, high = points.min(0), points.max(0)
    scale = np.where(high > low, high - low, 1)
    room = np.array([WIDTH, HEIGHT]) - 2 * MARGIN
    places = MARGIN + (points - low) / scale * room
    colour = {number: speaker_colour(place) for place, number in enumerate(np.unique(speaker))}
    shown = {number: escape(names[int(number)]) for number in colour}
    circles = "\n".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour[number]}" '
        f'data-speaker="{number}"><title>{shown[number]}</title></circle>'
        for (x, y), number in zip(places, speaker, strict=True)
    )
    buttons = "\n".join(
        f'<button type="button" data-speaker="{number}" data-name="{shown[number]}" '
        f'aria-pressed="false" style="border:1px solid {colour[number]};color:{colour[number]};'
        f'background:none;border-radius:6px;padding:2px 10px;margin:2px;cursor:pointer">'
        f"{shown[number]}</button>"
        for number in colour
    )
    return (
        f'<div>\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" '
        f'aria-label="Features by speaker" style="opacity:1">\n{circles}\n</svg>\n'
        f"<p>{buttons}</p>\n<p><output>Point at a point, or choose a speaker.</output></p>\n</div>"
        f"{SCRIPT}"
    )


def speaker_colour(place: int) -> str:
    """One of ten."""
    return to_hex(colormaps["tab10"](place % 10))


def offsets_figure(offsets: Offsets) -> Figure:
    """The paper's Figure 3 in both readings."""
    figure, panels = make_figure(2, num_columns=2, row_height=3.4)
    chance = [100 / n for n in offsets.num_candidates]
    readings = (
        ("acc_top1", "beats every negative", offsets.acc_top1, chance, BLUE),
        ("acc_pairwise", "share of the negatives beaten", offsets.acc_pairwise, None, GREEN),
    )
    for axes, (name, words, values, guess, colour) in zip(panels, readings, strict=True):
        x = [FRAME_MS * k for k in offsets.offsets]
        mean, low, high = (np.array(column) for column in zip(*values, strict=True))
        axes.plot(x, mean, "o-", color=colour, markersize=4, label=name)
        if np.isfinite(low).all():
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(x, guess or [50] * len(x), ":", color=RED, label="chance")
        label(axes, "milliseconds ahead", "percent", f"{name}: {words}")
        axes.set_ylim(0, 102)
        add_legend(axes)
    return figure


def bound_figure(rows: Sequence[Record], truth: dict[str, Any] | None) -> Figure:
    """Log N - L against N, an offset a line, below its ceiling log N."""
    figure, (axes,) = make_figure(1, row_height=4.2)
    offsets = sorted({row["offset"] for row in rows})
    shown = offsets[:: max(1, len(offsets) // 6)]
    sizes = sorted({row["n"] for row in rows})
    for place, offset in enumerate(shown):
        colour = colormaps["viridis"](0.05 + 0.85 * place / max(1, len(shown) - 1))
        mine = sorted((row for row in rows if row["offset"] == offset), key=lambda row: row["n"])
        n, value, low, high = (
            np.array([row[key] for row in mine], float) for key in ("n", "value", "low", "high")
        )
        axes.plot(n, value, "o-", color=colour, markersize=4, label=f"offset {offset}")
        if np.isfinite(low + high).all():
            axes.fill_between(n, low, high, color=colour, alpha=0.12, linewidth=0)
        known = dict(zip(*truth.values(), strict=True)) if truth else {}
        if offset in known:
            axes.axhline(known[offset], color=colour, linestyle=":", linewidth=1.2)
    axes.plot(sizes, np.log(sizes), "--", color=RED, linewidth=1.2, label="ceiling log N")
    last = max((row["n"] for row in rows if row["is_bound"]), default=None)
    if last is not None and last < sizes[-1]:
        axes.axvline(last, color=GRAY, linewidth=1, label="a bound up to here, then a score")
    axes.set_xscale("log", base=2)
    # In plain digits: a power's exponent would load all fonts of mathematics.
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    label(axes, "N, the positive among them", "nats", "log N − L on held-out windows")
    add_legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Ascending heights moved apart to at least a gap, each as far up as another goes down.

    >>> spread(np.array([0.0, 0.5, 0.5, 1.0]), 0.25)
    array([0.   , 0.375, 0.625, 1.   ])
    """
    steps = gap * np.arange(len(heights))
    pushed_up = np.maximum.accumulate(heights - steps)
    pushed_down = np.minimum.accumulate((heights - steps)[::-1])[::-1]
    return (pushed_up + pushed_down) / 2 + steps


def bound_and_probe_figure(
    points: dict[str, list[tuple[str, float, float]]],
    taus: dict[str, tuple[Estimate, float] | None],
) -> Figure:
    """A point a run: its strict bound, and what a linear probe reads off c."""
    figure, panels = make_figure(len(points), num_columns=2, row_height=3.9)
    for axes, (data, runs) in zip(panels, points.items(), strict=True):
        names, bounds, accuracies = zip(*sorted(runs, key=lambda run: run[2]), strict=True)
        axes.plot(bounds, accuracies, "o", color=BLUE, markersize=5)
        low, high = axes.get_ylim()
        heights = spread((np.array(accuracies) - low) / (high - low), 0.045)
        for name, bound, accuracy, height in zip(names, bounds, accuracies, heights, strict=True):
            axes.annotate(
                name.removeprefix("open-"),
                (bound, accuracy),
                xytext=(1.03, height),
                textcoords="axes fraction",
                va="center",
                fontsize=7,
                color=INK,
                arrowprops={"arrowstyle": "-", "color": GRAY, "linewidth": 0.5, "shrinkB": 3},
            )
        tau = taus[data]
        words = f", τ {tau[0].value:.2f}" if tau and math.isfinite(tau[0].value) else ""
        label(axes, "strict bound, nats", "phones, percent", f"{data}{words}")
    return figure
