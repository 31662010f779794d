"""Figures for image runs: neighbors, maximally exciting patches and augmentation."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cpc.report.draw import GREEN, INK, RED

MAX_ROWS, MAX_COLUMNS = 10, 12
AUGMENTED_IMAGES = 4
#: Figure width in inches.
WIDTH = 9.6


def neighbors_figure(arrays: Mapping[str, np.ndarray]) -> Figure:
    """Draw test images and nearest labeled images, framed in green if classes agree, else red."""
    queries = arrays["queries"][:MAX_ROWS, None]
    neighbours = arrays["neighbours"][:MAX_ROWS, :MAX_COLUMNS]
    labels = arrays["query_labels"][:MAX_ROWS]
    found = arrays["neighbour_labels"][:MAX_ROWS, :MAX_COLUMNS]
    names = [str(name) for name in arrays["class_names"]]

    rows, columns = neighbours.shape[:2]
    figure, axes = make_tile_figure(rows, columns + 1.3, shape=neighbours.shape[2:4], pitch=1.24)
    draw_tiles(axes, queries, pitch=1.24, names=[names[number] for number in labels])
    is_same = found == labels[:, None]
    colors = np.where(is_same, GREEN, RED)
    draw_tiles(axes, neighbours, pitch=1.24, left=1.3, colors=colors)
    height = neighbours.shape[2] / neighbours.shape[3]
    for i, j in zip(*np.nonzero(~is_same), strict=True):
        x, y = 1.3 + j + 0.46, (1.24 * i + 0.95) * height
        axes.text(x, y, names[found[i, j]], color=RED, fontsize=7, ha="center", va="top")
    return figure


def units_figure(arrays: Mapping[str, np.ndarray]) -> Figure:
    """Draw each z unit's most exciting patches, strongest first, as in the paper's Figure 5."""
    patches = arrays["patches"][:MAX_ROWS, :MAX_COLUMNS]
    figure, axes = make_tile_figure(*patches.shape[:2], shape=patches.shape[2:4])
    draw_tiles(axes, patches, names=[f"unit {number}" for number in arrays["units"]])
    return figure


def augmented_figure(arrays: Mapping[str, np.ndarray]) -> Figure:
    """Draw the patch grids of some images, with and without augmentation."""
    parts = (arrays[key][:AUGMENTED_IMAGES] for key in ("plain", "augmented"))
    grids = np.stack([[lay_out(grid) for grid in part] for part in parts])
    figure, axes = make_tile_figure(*grids.shape[:2], shape=grids.shape[2:4], largest=2.2)
    draw_tiles(axes, grids, names=["plain", "in training"])
    return figure


def make_tile_figure(
    rows: int, columns: float, *, shape: tuple[int, int], pitch: float = 1.0, largest: float = 1.1
) -> tuple[Figure, Axes]:
    """Make a figure for rows of tiles, which are small images of width 1, with names on the left.

    `shape` is the height and width of a tile, `pitch` is the distance between rows in tile heights,
    and `largest` is the maximum width of a tile in inches.
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
    """Draw uint8 tiles (rows, columns, y, x, channels), with optional row names and frames."""
    height = tiles.shape[2] / tiles.shape[3]
    for i, j in np.ndindex(*tiles.shape[:2]):
        x, y, side = left + j, pitch * height * i, 0.92
        extent = (x, x + side, y + side * height, y)
        # imshow would rescale a single channel and color it.
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
    """Join patches (i, j, y, x, channels) into one image with white lines between patches.

    >>> lay_out(np.zeros((2, 1, 4, 4, 1), np.uint8))[:, 0, 0]
    array([  0,   0,   0,   0, 255,   0,   0,   0,   0], dtype=uint8)
    """
    i, j, y, x, channels = patches.shape
    line = max(1, y // 12)
    canvas = np.full((i * (y + line), j * (x + line), channels), 255, np.uint8)
    tiles = canvas.reshape(i, y + line, j, x + line, channels)
    tiles[:, :y, :, :x] = patches.transpose(0, 2, 1, 3, 4)
    return canvas[: i * (y + line) - line, : j * (x + line) - line]


#: Drawing functions, keyed by the name of the file that contains the arrays.
DRAW = {"neighbours": neighbors_figure, "units": units_figure, "augmented": augmented_figure}
