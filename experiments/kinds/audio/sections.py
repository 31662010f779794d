"""Report page sections for audio runs: the speaker map and the paper's Table 1."""

import functools
from typing import Any

import numpy as np

from cpc.files import read_arrays
from cpc.report.engine import Figure, Section, Table
from cpc.report.words import Words
from cpc.results import Run, last_scores
from cpc.types import UserError
from experiments.kinds.audio.augmentation import augmentation_section
from experiments.kinds.audio.tasks import IN_GAME, NO_SILENCE
from experiments.kinds.paper import NUM_CLASSES, SOURCE, TABLE_1
from experiments.training.problem import Page

WORDS = Words(
    examples="recordings",
    group="speaker",
    ahead="latents ahead",
    tested="utterances",
    baselines=("mfcc", "mfcc context"),
    unranked=("codes",),
    notes={
        "asterisk_en": "These labels come from a recognizer's forced alignment, not from people.",
        NO_SILENCE: "Non-silence accuracy excludes silent frames from the same predictions.",
        IN_GAME: "Speakers also differ in language, microphone and codec. Within-game accuracy "
        "compares only the two voices of each game, which share all three.",
    },
    titles={"mfcc": "MFCC", "mfcc context": "MFCC with context", "tuned": "CPC, fine-tuned"},
)
MAX_POINTS = 1500
#: Minimum number of map points that differ by more than rounding.
MIN_DISTINCT_POINTS = 10
#: Largest relative variation that rounding causes in a constant float32 column.
ROUNDING = 1e-6
#: Shown instead of a map with too few distinct or finite points.
NO_MAP = (
    f"The map was left out: fewer than {MIN_DISTINCT_POINTS} of its {{}} points differ. The "
    "network may have collapsed, or the recordings may be silent."
)
SPEAKERS = (
    "t-SNE of c: each point is a stretch of a test utterance, each color a speaker. Separate "
    "islands mean that the context identifies the speaker. Only neighborhoods are meaningful; "
    "distances between islands and sizes of islands are not."
)


def paper_section(run: Run) -> Section | None:
    """Compare a run's per-frame probe accuracies with the paper's Table 1."""
    import pandas as pd

    scores, tables = last_scores(run.scores), []
    scores = scores[(scores.unit == "frame") & (scores.metric == "accuracy")]
    for task, entries in TABLE_1.items():
        for data, ours in scores[scores.task == task].groupby("data"):
            values = {(row.features, row.method): row.value for row in ours.itertuples()}
            measured = [100 * values.get((one.features, one.probe), np.nan) for one in entries]
            rows = pd.DataFrame(
                {
                    "features": [one.label for one in entries],
                    "accuracy, %": measured,
                    "paper, %": [one.accuracy for one in entries],
                }
            )
            title, note = f"{task.capitalize()} by frame, {data}", NUM_CLASSES[task]
            formats = {"accuracy, %": ".1f", "paper, %": "g"}
            note = f"Paper: {note} classes. {WORDS.notes.get(str(data), '')}".strip()
            tables.append(Table(title, rows, note, formats))
    if not tables:
        return None
    note = (
        f"The paper's values come from {SOURCE}. Its recordings, speakers and label sets differ "
        "from those used here, so absolute values are not comparable. In the paper, accuracy rises "
        "in the order random initialization, MFCC, CPC, supervised."
    )
    return Section("Comparison with the paper", [note], tables=tables)


def read_speaker_map(run: Run) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
    """Read features (n, h), speakers (n,) and speaker names, or return None if no map exists."""
    path = run.workdir / "probes" / "speaker_map.npz"
    if not path.exists():
        return None
    stored = read_arrays(path)
    features = stored["features"].astype(np.float32)
    return features, stored["speaker"], [str(name) for name in stored["names"]]


def speakers_section(run: Run) -> Section | None:
    """Return a section with a map of contexts by speaker, as in the paper's Figure 2."""
    try:
        found = read_speaker_map(run)
    except UserError as error:
        return Section("Speakers", [f"The map was left out: {error}; fit the probes again."])
    if found is None or len(found[0]) < MIN_DISTINCT_POINTS:
        return None
    drawn = draw_speakers(*found)
    if drawn is None:
        return Section("Speakers", [NO_MAP.format(len(found[0]))])
    title = "Contexts of test utterances by speaker (the paper's Figure 2)"
    return Section("Speakers", figures=[Figure("speakers", drawn, title, SPEAKERS)])


def draw_speakers(features: np.ndarray, speaker: np.ndarray, names: list[str]) -> Any:
    """Draw a t-SNE map colored by speaker, or return None for too few distinct or finite points."""
    from matplotlib import colormaps  # takes seconds, which would delay training

    from cpc.report.draw import add_legend, make_figure

    chosen = np.sort(np.random.default_rng(0).permutation(len(features))[:MAX_POINTS])
    points, speaker = flat_points(features[chosen]), speaker[chosen]
    if points is None:
        return None
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
            label=names[number],
        )
    axes.set_axis_off()
    add_legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=1.6)
    return figure


def flat_points(x: np.ndarray) -> np.ndarray | None:
    """Return t-SNE coordinates (n, 2) of features (n, d), which are standardized first.

    The result is deterministic and cached for reproduction pages. Returns None if a value is not
    finite or too few rows differ by more than rounding, because t-SNE could crash the process.
    """
    return _flat_points(x.tobytes(), x.dtype.str, x.shape)


@functools.lru_cache(maxsize=1)
def _flat_points(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray | None:
    x = np.frombuffer(data, dtype).reshape(shape)
    if len(x) < MIN_DISTINCT_POINTS or not np.isfinite(x).all():
        return None
    x = standardize(x)
    if len(np.unique(x.round(4), axis=0)) < MIN_DISTINCT_POINTS:
        return None
    from sklearn.manifold import TSNE  # takes over a second, and only this figure needs it
    from threadpoolctl import threadpool_limits

    x = np.pad(x, ((0, 0), (0, max(0, 2 - shape[1])))).astype(np.float32)
    perplexity = min(30.0, (len(x) - 1) / 3)
    with threadpool_limits(1):  # with more threads, synchronization costs more than it saves
        return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(x)


def standardize(x: np.ndarray) -> np.ndarray:
    """Scale columns to mean 0 and standard deviation 1, in float64.

    Constant columns become 0.

    >>> standardize(np.array([[1e-30, 7.0], [3e-30, 7.0]])).round(6).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    x = x.astype(np.float64)  # squares of float32 would overflow
    mean, std = x.mean(axis=0), x.std(axis=0)
    varies = std > ROUNDING * np.abs(x).max(axis=0, initial=0)
    return np.where(varies, x - mean, 0) / np.where(varies, std, 1)


PAGE = Page(
    words=WORDS,
    use="""from cpc import models

embed = models.load("{folder}")
# x: (b, s), (s,) or a list of (s,); pass sample_rate_hz=... if it is not {sample_rate_hz}
z, c = embed(x)  # both (b, t, width)""",
    sections=(paper_section, speakers_section, augmentation_section),
)
