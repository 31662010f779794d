"""Functions that give all figures the same colors, axes and legends."""

from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

INK, MUTED, GRID = "#1f2733", "#6b7685", "#e3e7ed"
BLUE, RED, GREEN, ORANGE, GRAY = "#2459c9", "#c8384e", "#1f8a5b", "#d9822b", "#9aa4b2"

#: Color, marker and legend text for each state of an offset's log N - L, such as "saturated".
STATES = {
    "fine": (BLUE, "o", "fine"),
    "warn": (ORANGE, "D", "near the ceiling"),
    "saturated": (RED, "s", "saturated"),
    "chance": (GRAY, "X", "at chance"),
    "diverged": (INK, "v", "worse than guessing"),
}


def palette(number: int) -> list[Any]:
    """Return `number` distinct colors."""
    if number <= 10:
        return [colormaps["tab10"](place) for place in range(number)]
    return [colormaps["turbo"](0.05 + 0.9 * place / (number - 1)) for place in range(number)]


def make_figure(
    num_panels: int, num_columns: int = 3, width: float = 9.6, row_height: float = 3.5
) -> tuple[Figure, list[Axes]]:
    """Make a figure and its styled panels, at most `num_columns` per row. Sizes are in inches."""
    columns = min(num_columns, num_panels)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(width, rows * row_height), layout="constrained", facecolor="white")
    if rows > 1:  # keeps the title of a panel clear of the axis above
        engine: Any = figure.get_layout_engine()
        engine.set(hspace=0.06)
    panels = [figure.add_subplot(rows, columns, panel + 1) for panel in range(num_panels)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GRAY)
        axes.tick_params(colors=MUTED, labelsize=9, length=3)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, panels


def label(axes: Axes, x: str, y: str, title: str) -> None:
    """Set a panel's axis labels and title."""
    axes.set_xlabel(x, color=INK, fontsize=9.5)
    axes.set_ylabel(y, color=INK, fontsize=9.5)
    axes.set_title(title, color=INK, fontsize=10.5, fontweight="bold", loc="left", pad=8)


def add_legend(axes: Axes, **options) -> None:
    """Add a frameless legend if the axes have labeled artists."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        options = {"loc": "best", **options}
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1.8, **options)


def add_shared_legend(figure: Figure, panels: list[Axes], max_columns: int = 5) -> None:
    """Add one legend below all panels, in which each name appears once."""
    named = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    columns = max(1, 120 // max(map(len, named), default=1))
    style: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "labelcolor": INK}
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", handlelength=1.8,
        ncols=min(len(named), columns, max_columns), **style,
    )  # fmt: skip


def stack_panels(figure: Figure) -> bool:
    """Stack the panels of a figure vertically for narrow screens, and return whether it changed.

    If the panels are already in one column or not in a regular grid, the figure is unchanged.
    """
    panels = [axes.get_subplotspec() for axes in figure.axes]
    grids = {spec.get_gridspec().get_geometry() for spec in panels if spec}
    if None in panels or len(grids) != 1 or len(panels) < 2 or next(iter(grids))[1] == 1:
        return False
    height = figure.get_size_inches()[1] / next(iter(grids))[0]
    grid = GridSpec(len(panels), 1, figure)
    for place, axes in enumerate(figure.axes):
        axes.set_subplotspec(grid[place])
    figure.set_size_inches(4.6, len(panels) * height)
    if figure.legends:
        figure.legends[0].remove()
        add_shared_legend(figure, figure.axes, max_columns=1)
    return True
