"""The paper's Figures 2, 3 and 5 from the runs of a reproduction."""

import numpy as np

from cpc.data import SAMPLE_RATE_HZ
from cpc.files import read_arrays
from cpc.report.engine import Figure, Section, Table, show
from cpc.types import UserError
from experiments.command.config import load_config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.model import build_encoder
from experiments.kinds.audio.sections import (
    MIN_DISTINCT_POINTS,
    NO_MAP,
    flat_points,
    read_speaker_map,
)
from experiments.kinds.image.figures import units_figure
from experiments.kinds.image.sections import check_arrays
from experiments.reproduce.cells import FAR_OFFSETS, IMAGE, MIXED
from experiments.reproduce.figures import offsets_figure, speakers_figure
from experiments.reproduce.read import Reproduction, first_run
from experiments.reproduce.show import show_estimate
from experiments.reproduce.trends import Offsets, read_offsets

#: At most so many speakers (the paper's Figure 2 shows ten of 251) and points.
NUM_SPEAKERS, MAX_POINTS = 10, 1000


def speakers_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 2: a point is a piece of speech, its color the speaker."""
    title, run = "Figure 2: what c knows of speakers", first_run(reproduction, MIXED)
    try:
        found = read_speaker_map(run) if run else None
    except UserError as error:
        return Section(title, [f"Left out: {error}."])
    if found is None or len(found[0]) < MIN_DISTINCT_POINTS:
        return Section(title, ["Not measured."])
    features, speaker = chosen_speakers(*found[:2])
    points = flat_points(features)
    if points is None:
        return Section(title, [NO_MAP.format(len(features))])
    same, chance = same_speaker_fraction(features, speaker)
    caption = (
        f"t-SNE of means of c over pieces of test utterances. The nearest other point, in the "
        f"features themselves, is of the same speaker for {100 * same:.1f} % of the points "
        f"(by chance {100 * chance:.1f} %)."
    )
    figure = speakers_figure(points, speaker, found[2])
    return Section(title, figures=[Figure("speakers", figure, "Speech by speaker", caption)])


def chosen_speakers(features: np.ndarray, speaker: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of the speakers who have most of them, at most `MAX_POINTS`."""
    counts = np.bincount(speaker)
    speakers = np.argsort(-counts, kind="stable")[:NUM_SPEAKERS]
    rows = np.flatnonzero(np.isin(speaker, speakers))[:MAX_POINTS]
    return features[rows], speaker[rows]


def same_speaker_fraction(features: np.ndarray, speaker: np.ndarray) -> tuple[float, float]:
    """Return how often the nearest point is of the same speaker, and how often any other is.

    >>> x = np.array([[0.0, 0], [0, 1], [9, 9], [9, 8]], np.float32)
    >>> same_speaker_fraction(x, np.array([0, 0, 1, 1]))
    (1.0, 0.3333333333333333)
    """
    x = features.astype(np.float64)
    square = (x**2).sum(1)
    distance = square[:, None] - 2 * x @ x.T + square
    np.fill_diagonal(distance, np.inf)
    counts, number = np.bincount(speaker), len(speaker)
    chance = (counts * (counts - 1)).sum() / (number * (number - 1))
    return float((speaker[distance.argmin(1)] == speaker).mean()), float(chance)


def offsets_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 3 in both readings, as curves and as a table."""
    title = "Figure 3: how often the positive wins, by offset"
    offsets = read_offsets(reproduction.runs.get(FAR_OFFSETS, []))
    if offsets is None:
        return Section(title, ["Not measured."])
    config = load_config(reproduction.runs[FAR_OFFSETS][0].config, audio.KEYS)
    frame_ms = 1000 * build_encoder(config).stride / SAMPLE_RATE_HZ
    figure = offsets_figure(offsets.frame, frame_ms)
    formats = {
        "N": ",.0f",
        "log N": ".2f",
        "chance %": ".2g",
        "acc_top1 %": show_estimate,
        "acc_pairwise %": show_estimate,
    }
    return Section(
        title,
        figures=[Figure("offsets", figure, "Two readings", offsets_sentence(offsets))],
        details=[Table("All offsets", offsets.frame, formats=formats)],
    )


def offsets_sentence(offsets: Offsets) -> str:
    """Return whether the curve falls."""
    tau, p = show(offsets.tau, ".2f"), show(offsets.p, ".2g")
    return (
        f"Held-out windows, N about {offsets.frame.N.mean():,.0f}. The paper's curve starts high "
        f"and falls; ours: {offsets.verdict} (Kendall's τ of acc_top1 with the offset {tau}, p {p} "
        "if offsets were independent). The first two offsets share samples with the context."
    )


def units_section(reproduction: Reproduction) -> Section:
    """Return the paper's Figure 5: patches that excite single units."""
    title, run = "Figure 5: patches that excite a unit", first_run(reproduction, IMAGE)
    path = run.workdir / "probes" / "units.npz" if run else None
    if path is None or not path.exists():
        return Section(title, ["Not measured."])
    try:
        figure = units_figure(check_arrays("units", read_arrays(path)))
    except UserError as error:
        return Section(title, [f"Left out: {error}."])
    caption = "A row a unit of z, the patch that excites it most first."
    return Section(title, figures=[Figure("units", figure, "Units", caption)])
