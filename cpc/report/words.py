"""The nouns and titles with which pages describe different kinds of data."""

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """The nouns, titles and notes with which pages describe one kind of data."""

    examples: str = "examples"
    """Noun for the training examples, such as "recordings"."""
    sequence: str = "sequence"
    """Noun for the sequence that contains a latent, such as "window"."""
    group: str = "group"
    """Noun for a group of sequences, such as "speaker"."""
    ahead: str = "steps ahead"
    """Unit of prediction offsets, such as "latents ahead"."""
    tested: str = "examples"
    """Noun for the test items over which intervals are computed, such as "utterances"."""
    features: tuple[str, ...] = ("c", "z")
    """Names of learned features, the most important first."""
    baselines: tuple[str, ...] = ()
    """Names of hand-made features to compare with, such as "mfcc"."""
    titles: Mapping[str, str] = {}
    """Titles of features by name, such as {"mfcc": "MFCC"}."""
    unranked: tuple[str, ...] = ()
    """Tasks whose scores only describe a model: neither higher nor lower is better."""
    notes: Mapping[str, str] = {}
    """Notes on data sets and metrics, by name, which are shown with their scores."""
    files: Mapping[str, str] = {}
    """Descriptions of files that only runs on this kind of data write, by file name."""
