"""What kinds of data have in common whose latents follow each other in time."""

import functools
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from cpc.models import GRU, LSTM, CausalConv, CausalTransformer
from cpc.types import Batch, Position, UserError
from experiments.choices import build_rule
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


def check_negatives(config: Config, length: int, furthest: int) -> None:
    """Check that at every offset up to the furthest some anchor of windows has a negative.

    `length` is that of the windows, in latents.

    Rules look at how far two latents lie apart, and at whether their windows, and shards, are the
    same. So it is enough to ask about the first and the last anchor, about candidates at both ends
    and around the positive, and about a window near and one far away.
    """
    if length < 2:
        key = next(f"data.{name}" for name in config.data if name.startswith("window_"))
        raise UserError(f"a window has {length} latent, so no other is ahead of it: raise {key}")
    rule, batch_size = build_rule(config), config.data.batch_size
    sequence = np.unique([0, min(1, batch_size - 1), batch_size - 1])[:, None]
    for k in range(1, min(furthest, length - 1) + 1):
        first = np.array([0, length - 1 - k])[:, None, None]
        time = np.clip([0, 1, k - 1, k, k + 1, length - 2, length - 1], 0, length - 1)
        anchors = Position(0 * first, first, 0 * first, 0 * first)
        candidates = Position(sequence, time, 0 * time, 0 * time)
        if not np.any(rule(anchors, candidates, k)):
            raise UserError(
                f"the rule {rule.name} leaves a batch of {batch_size} windows no negatives at "
                f"offset {k}: raise data.batch_size, or choose another rule or window"
            )
