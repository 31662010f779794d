"""Figures of runs on pictures: neighbours, units, augmentation, accuracy against labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from cpc.report.draw import GREEN, INK, RED, add_shared_legend, label, make_figure
from cpc.report.probe_figures import feature_color, feature_order, feature_title
from cpc.report.records import Run

MAX_ROWS, MAX_COLUMNS = 10, 12
AUGMENTED_PICTURES = 4
#: Inches.
WIDTH, LARGEST_TILE = 9.6, 1.1


def neighbours_figure(run: Run) -> Figure | None:
    """Test pictures, each with the training pictures nearest to it, framed by their class."""
    arrays = run.arrays.get("neighbours")
    if arrays is None:
        return None
    queries = arrays["queries"][:MAX_ROWS, None]
    neighbours = arrays["neighbours"][:MAX_ROWS, :MAX_COLUMNS]
    asked = arrays["query_labels"][:MAX_ROWS]
    found = arrays["neighbour_labels"][:MAX_ROWS, :MAX_COLUMNS]
    names = [str(name) for name in arrays["class_names"]]

    rows, columns = neighbours.shape[:2]
    figure, axes = make_tile_figure(rows, columns + 1.3, shape=neighbours.shape[2:4], pitch=1.24)
    draw_tiles(axes, queries, pitch=1.24, names=[names[number] for number in asked])
    is_same = found == asked[:, None]
    colors = np.where(is_same, GREEN, RED)
    draw_tiles(axes, neighbours, pitch=1.24, left=1.3, colors=colors)
    height = neighbours.shape[2] / neighbours.shape[3]
    for i, j in zip(*np.nonzero(~is_same), strict=True):
        place = 1.3 + j + 0.46, (1.24 * i + 0.95) * height
        axes.text(*place, names[found[i, j]], color=RED, fontsize=7, ha="center", va="top")
    return figure


def units_figure(run: Run) -> Figure | None:
    """The patches that excite some units most, strongest first: the paper's Figure 5."""
    arrays = run.arrays.get("units")
    if arrays is None:
        return None
    patches = arrays["patches"][:MAX_ROWS, :MAX_COLUMNS]
    figure, axes = make_tile_figure(*patches.shape[:2], shape=patches.shape[2:4])
    draw_tiles(axes, patches, names=[f"unit {number}" for number in arrays["units"]])
    return figure


def augmented_figure(run: Run) -> Figure | None:
    """The grid of patches of some pictures, as they are and as the training sees them."""
    arrays = run.arrays.get("augmented")
    if arrays is None:
        return None
    parts = (arrays[key][:AUGMENTED_PICTURES] for key in ("plain", "augmented"))
    grids = np.stack([[lay_out(grid) for grid in part] for part in parts])
    figure, axes = make_tile_figure(*grids.shape[:2], shape=grids.shape[2:4], largest=2.2)
    draw_tiles(axes, grids, names=["as they are", "in training"])
    return figure


def make_tile_figure(
    rows: int,
    columns: float | int,
    *,
    shape: tuple[int, int],
    pitch: float | int = 1.0,
    largest: float | int = LARGEST_TILE,
) -> tuple[Figure, Axes]:
    """A figure for rows of tiles with a name on the left, in units of a tile's width.

    `shape` is a tile's, in pixels; `pitch` is from row to row, in tile heights.
    """
    inches = min(largest, (WIDTH - 1.0) / columns)
    height = rows * pitch * shape[0] / shape[1]
    figure = Figure(figsize=(WIDTH, (height + 0.04) * inches), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-1.0 / inches, (WIDTH - 1.0) / inches)
    axes.set_ylim(height, -0.04)
    return figure, axes


def draw_tiles(
    axes: Axes,
    tiles: np.ndarray,
    *,
    pitch: float | int = 1.0,
    left: float | int = 0.0,
    names: Sequence[str] = (),
    colors: np.ndarray | None = None,
) -> None:
    """Tiles (rows, columns, y, x, channels), uint8, with names of the rows or colours of frames."""
    height = tiles.shape[2] / tiles.shape[3]
    for i, j in np.ndindex(*tiles.shape[:2]):
        x, y, side = left + j, pitch * height * i, 0.92
        extent = (x, x + side, y + side * height, y)
        # One channel is drawn as grey, whatever its range.
        image = np.repeat(tiles[i, j], 3 // tiles.shape[4], axis=2)
        axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
        if colors is not None:
            frame = Rectangle((x, y), side, side * height, fill=False, linewidth=2.2)
            frame.set_edgecolor(str(colors[i, j]))
            axes.add_patch(frame)
    for i, name in enumerate(names[: len(tiles)]):
        y = (pitch * i + 0.46) * height
        axes.text(left - 0.08, y, name, color=INK, fontsize=9, ha="right", va="center")


def lay_out(patches: np.ndarray) -> np.ndarray:
    """A grid of patches (i, j, y, x, channels) as one picture with white lines between them.

    >>> lay_out(np.zeros((2, 1, 4, 4, 1), np.uint8))[:, 0, 0]
    array([  0,   0,   0,   0, 255,   0,   0,   0,   0], dtype=uint8)
    """
    i, j, y, x, channels = patches.shape
    line = max(1, y // 12)
    canvas = np.full((i * (y + line), j * (x + line), channels), 255, np.uint8)
    tiles = canvas.reshape(i, y + line, j, x + line, channels)
    tiles[:, :y, :, :x] = patches.transpose(0, 2, 1, 3, 4)
    return canvas[: i * (y + line) - line, : j * (x + line) - line]


def few_labels_figure(run: Run) -> Figure | None:
    """Accuracy against the share of labels, a line for each of the features and modes."""
    rows = run.few_labels
    if not rows:
        return None
    figure, (axes,) = make_figure(1, row_height=4.4)
    for features, mode in curve_names(rows):
        points = curve(rows, features, mode)
        percent = [100 * row["fraction"] for row in points]
        accuracy, low, high = (
            100 * np.array([row[key] for row in points], float)
            for key in ("accuracy", "low", "high")
        )
        axes.errorbar(
            percent,
            accuracy,
            yerr=np.maximum(0, [accuracy - low, high - accuracy]),
            color=feature_color(features),
            linestyle="-" if mode == "frozen" else "--",
            marker="s" if features.endswith("c") else "o",
            markerfacecolor=feature_color(features) if mode == "frozen" else "white",
            markersize=4.5,
            linewidth=1.5,
            capsize=2.5,
            elinewidth=1.1,
            label=curve_title(features, mode),
        )
    counts = {row["fraction"]: row["num_labels"] for row in rows}
    shares = sorted(counts)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([100 * s for s in shares], [f"{100 * s:g} %\n{counts[s]:,}" for s in shares])
    label(axes, "share and number of labels", "accuracy, percent", "")
    add_shared_legend(figure, [axes])
    return figure


def curve_names(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Features and mode of each curve, baselines first."""
    names = {(row["features"], row["mode"]) for row in rows}
    return sorted(names, key=lambda name: (feature_order(name[0]), name[1] != "frozen"))


def curve_title(features: str, mode: str) -> str:
    """In words; a supervised network has only one way to be trained.

    >>> curve_title("z", "frozen"), curve_title("supervised", "fine-tuned")
    ('CPC, z, frozen', 'supervised')
    """
    return features if features == "supervised" else f"{feature_title(features)}, {mode}"


def curve(rows: list[dict[str, Any]], features: str, mode: str) -> list[dict[str, Any]]:
    """The points of one curve by ascending share of labels."""
    points = [row for row in rows if (row["features"], row["mode"]) == (features, mode)]
    return sorted(points, key=lambda row: row["fraction"])
