"""How every figure of the report looks: colours, axes, and the way to a PNG file."""

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2733", "#6b7685", "#e3e7ed"
BLUE, RED, GREEN, ORANGE, GRAY = "#2459c9", "#c8384e", "#1f8a5b", "#d9822b", "#9aa4b2"

#: Saturation states of an offset: colour, marker, and words.
STATES = {
    "fine": (BLUE, "o", "fine"),
    "warn": (ORANGE, "D", "near the ceiling"),
    "saturated": (RED, "s", "saturated: more than log N may be there"),
    "chance": (GRAY, "X", "at chance"),
}


def make_figure(
    num_panels: int, width: float = 9.6, height: float = 3.5
) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side, on the house's axes. Sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    panels = [figure.add_subplot(1, num_panels, panel + 1) for panel in range(num_panels)]
    for axes in panels:
        style_axes(axes)
    return figure, panels


def style_axes(axes: Axes) -> None:
    """Two thin spines, a light horizontal grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRAY)
    axes.tick_params(colors=MUTED, labelsize=9, length=3)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def label(axes: Axes, x: str, y: str, title: str) -> None:
    """Names of the axes and of the panel."""
    axes.set_xlabel(x, color=INK, fontsize=9.5)
    axes.set_ylabel(y, color=INK, fontsize=9.5)
    axes.set_title(title, color=INK, fontsize=10.5, fontweight="bold", loc="left", pad=8)


def add_legend(axes: Axes, **options) -> None:
    """A legend without a frame, if there is anything to name."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        options = {"loc": "best", **options}
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1.8, **options)


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG file, the same bytes each time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()
