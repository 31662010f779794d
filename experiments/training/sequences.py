"""What kinds of data have in common whose latents follow each other in time."""

import functools
import pathlib
from typing import Any

import jax.numpy as jnp

from cpc.models import GRU, LSTM, CausalConv, CausalTransformer
from cpc.types import Batch, Position
from experiments.command.config import Config

CONTEXTS = {
    "gru": GRU,
    "lstm": LSTM,
    "conv": CausalConv,
    "conv_undilated": functools.partial(CausalConv, dilated=False),
    "transformer": CausalTransformer,
}


def name_of(config: Config) -> str:
    """Return what scores call series or text: a file's or folder's own name, or the source's."""
    if config.data.source == "files":
        return pathlib.Path(config.data.path).expanduser().resolve().name
    return config.data.source


def places_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Return what scores call series or text, and where they are."""
    return {name_of(config): (config.data.path if config.data.source == "files" else "",)}


def positions(batch: Batch, group: Any, length: int) -> Position:
    """Return where the latents of a batch of windows come from, given the group of each."""
    return Position(
        sequence=batch["sequence"][:, None],
        time=jnp.arange(length)[None],
        lane=jnp.zeros((1, 1), jnp.int32),
        group=group[:, None],
    )
