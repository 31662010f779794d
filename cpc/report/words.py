"""The nouns of a page's sentences, which every kind of data has for itself."""

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """The nouns of a page's sentences."""

    examples: str = "examples"
    """What a run is trained on, such as "recordings"."""
    sequence: str = "sequence"
    """What a latent belongs to."""
    target: str = "future latent"
    """What is predicted, such as "future frame"."""
    near: str = "the near future"
    """What is easy to predict."""
    ahead: str = "steps ahead"
    """What an offset counts, such as "latents ahead"."""
    tested: str = "examples"
    """The items of the test set over which intervals are taken, such as "utterances"."""
    features: tuple[str, ...] = ("c", "z")
    """Learned features; those that are spoken of first come first."""
    baselines: tuple[str, ...] = ()
    """Features by hand that learned ones are laid beside, such as "mfcc"."""
    titles: Mapping[str, str] = {}
    """What features are called, where their name does not say it, such as "mfcc": "MFCC"."""
    files: Mapping[str, str] = {}
    """What files are that only this kind of data has in its run directory."""
