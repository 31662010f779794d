"""The nouns of a page's sentences, which depend on the kind of data."""

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """The nouns of a page's sentences."""

    examples: str = "examples"
    """The training data, such as "recordings"."""
    sequence: str = "sequence"
    """The sequence of a latent, such as "window"."""
    group: str = "group"
    """The group that sequences share, such as "speaker"."""
    ahead: str = "steps ahead"
    """The unit of an offset, such as "latents ahead"."""
    tested: str = "examples"
    """The test items of intervals, such as "utterances"."""
    features: tuple[str, ...] = ("c", "z")
    """Learned features, the most important first."""
    baselines: tuple[str, ...] = ()
    """Hand-made features to compare with, such as "mfcc"."""
    titles: Mapping[str, str] = {}
    """Titles of features, such as "mfcc": "MFCC"."""
    unranked: tuple[str, ...] = ()
    """Tasks whose scores describe a model, so that neither more nor less is better."""
    notes: Mapping[str, str] = {}
    """Sentences on data sets and metrics, by name, for the tables of their scores."""
    files: Mapping[str, str] = {}
    """Meanings of the files of this kind of data in a run directory."""
