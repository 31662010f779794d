"""Figures of the probes: accuracies with intervals, and the picture of speakers."""

import functools
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpc.report.draw import (
    BLUE,
    GRAY,
    GREEN,
    GRID,
    INK,
    ORANGE,
    RED,
    add_legend,
    add_shared_legend,
    label,
    make_figure,
)
from cpc.report.records import Run, series

MAX_POINTS = 1500


def feature_title(name: str) -> str:
    """Features in words.

    >>> feature_title("random c")
    'random initialisation, c'
    """
    words = {"c": "CPC, c", "z": "CPC, z", "mfcc": "MFCC", "pixels": "raw pixels"}
    if name.startswith("random"):
        return f"random initialisation{name.removeprefix('random').replace(' ', ', ', 1)}"
    return words.get(name, name)


def feature_order(name: str) -> tuple[int, str]:
    """Baselines first, then what CPC learned, as in the paper's Table 1."""
    kinds = {"mfcc": 1, "pixels": 1, "z": 2, "c": 3}
    return 0 if name.startswith("random") else kinds.get(name, 4), name


#: Probes in the order of the tables, with their words.
PROBES = {
    "linear": "linear",
    "hidden": "one hidden layer",
    "sgd": "linear, SGD",
    "ridge": "ridge regression",
    "knn": "nearest neighbours",
    "whole network": "whole network",
}


def probe_order(name: str) -> int:
    """Place among the probes, the unknown ones last."""
    return list(PROBES).index(name) if name in PROBES else len(PROBES)


def row_title(row: dict[str, Any]) -> str:
    """Features and probe in words; a linear probe goes without saying."""
    probe = {"linear": "", "hidden": ", hidden", "knn": ", kNN"}.get(
        row["probe"], f", {row['probe']}"
    )
    return feature_title(row["features"]) + probe


def grouped_rows(run: Run) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Probe rows by (task, data, unit), each group from baselines to CPC."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for probe in run.probes.values():
        for row in probe["rows"]:
            groups.setdefault((row["task"], row["data"], row["unit"]), []).append(row)
    for rows in groups.values():
        rows.sort(key=lambda row: (probe_order(row["probe"]), feature_order(row["features"])))
    return dict(sorted(groups.items()))


def feature_color(name: str) -> str:
    """The same colour for the same features everywhere."""
    if name.startswith("random"):
        return GRAY
    return {"mfcc": ORANGE, "pixels": ORANGE, "z": GREEN, "c": BLUE}.get(name, INK)


def probe_figure(run: Run) -> Figure | None:
    """Accuracy of each probe with its interval over utterances, a panel for each task and unit."""
    groups = grouped_rows(run)
    if not groups:
        return None
    most = max(len(rows) for rows in groups.values())
    figure, panels = make_figure(len(groups), num_columns=2, row_height=1.25 + 0.34 * most)
    for axes, ((task, data, unit), rows) in zip(panels, groups.items(), strict=True):
        for place, row in enumerate(rows):
            accuracy, low, high = (100 * row[key] for key in ("accuracy", "low", "high"))
            color = feature_color(row["features"])
            axes.barh(place, accuracy, height=0.62, color=color, alpha=0.85)
            axes.plot([low, high], [place, place], color=INK, linewidth=1.4)
            inside = accuracy > 80
            axes.annotate(
                f"{accuracy:.1f}",
                (low if inside else high, place),
                xytext=(-5 if inside else 5, 0),
                textcoords="offset points",
                ha="right" if inside else "left",
                va="center",
                fontsize=8.5,
                color="white" if inside else INK,
            )
        majority = 100 * rows[0]["majority"]
        axes.axvline(majority, color=RED, linestyle=":", linewidth=1.3, label="majority class")
        axes.set_yticks(range(len(rows)), [row_title(row) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        label(axes, "accuracy, percent", "", f"{task} by {unit}\n{data}")
    add_shared_legend(figure, panels[:1])
    return figure


def probe_progress_figure(run: Run) -> Figure | None:
    """Accuracies of the probes that were fitted during the training, over the steps."""
    names = {name for record in run.probe_records for name in record if name.count("/") in (2, 4)}
    panels_of: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(names):
        panels_of.setdefault(progress_parts(name)[0], []).append(name)
    if not names:
        return None
    figure, panels = make_figure(len(panels_of), num_columns=2, row_height=2.7)
    for axes, ((task, data, unit), lines) in zip(panels, panels_of.items(), strict=True):
        for name in lines:
            steps, values = series(run.probe_records, name)
            features, probe = progress_parts(name)[1]
            axes.plot(
                steps,
                100 * values,
                color=feature_color(features),
                linestyle="-" if probe == "linear" else "--",
                marker="o",
                markersize=3.5,
                label=row_title({"features": features, "probe": probe}),
            )
        label(axes, "step", "accuracy, percent", f"{task} by {unit}\n{data}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_shared_legend(figure, panels)
    return figure


def progress_parts(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(task, data, unit) and (features, probe) of the name of an accuracy in the metrics.

    >>> progress_parts("phones/voices/c/linear/frame")
    (('phones', 'voices', 'frame'), ('c', 'linear'))
    >>> progress_parts("classes/z/knn")
    (('classes', '', 'picture'), ('z', 'knn'))
    """
    if name.count("/") == 2:
        task, features, probe = name.split("/")
        return (task, "", "picture"), (features, probe)
    task, data, features, probe, unit = name.split("/")
    return (task, data, unit), (features, probe)


def flat_points(x: np.ndarray) -> np.ndarray:
    """t-SNE of the standardised features (n, d): (n, 2), the same each time.

    The last answer is kept: the page of a reproduction is written anew after each of its cells.
    """
    return _flat_points(x.tobytes(), x.dtype.str, x.shape)


@functools.lru_cache(maxsize=1)
def _flat_points(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    from sklearn.manifold import TSNE  # over a second, which other pictures need not wait

    x = np.frombuffer(data, dtype).reshape(shape)
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    perplexity = min(30.0, (len(x) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(x)


def speakers_figure(run: Run) -> Figure | None:
    """t-SNE of the features of frames, coloured by speaker: the paper's Figure 2."""
    picture = run.picture
    if picture is None or len(picture.features) < 10:
        return None
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permutation(len(picture.features))[:MAX_POINTS])
    points, speaker = flat_points(picture.features[chosen]), picture.speaker[chosen]
    figure, (axes,) = make_figure(1, width=8.4, row_height=4.6)
    colors = colormaps["tab10"].colors  # pyright: ignore[reportAttributeAccessIssue]
    for number in np.unique(speaker):
        x, y = points[speaker == number].T
        axes.scatter(
            x,
            y,
            s=14,
            color=colors[number % 10],
            marker="o^sDvP*X"[number // 10 % 8],
            alpha=0.8,
            linewidths=0,
            label=picture.names[number],
        )
    axes.set_axis_off()
    add_legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=1.6)
    return figure
