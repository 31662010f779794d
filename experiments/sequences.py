"""What kinds of data have in common whose latents follow each other in time."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from cpc.models import GRU, LSTM, CausalConv, CausalTransformer
from cpc.types import Batch, Position, UserError
from experiments.command.config import Config
from experiments.objective import build_rule

CONTEXTS = {"gru": GRU, "lstm": LSTM, "conv": CausalConv, "transformer": CausalTransformer}


def positions(batch: Batch, group: Any, length: int) -> Position:
    """Return where the latents of a batch of windows come from, given the group of each."""
    return Position(
        sequence=batch["sequence"][:, None],
        time=jnp.arange(length)[None],
        lane=jnp.zeros((1, 1), jnp.int32),
        group=group[:, None],
    )


def check_negatives(config: Config, length: int) -> None:
    """Check that at every offset some anchor of windows of so many latents has a negative."""
    rule, batch_size = build_rule(config), config.data.batch_size
    sequence, time = np.divmod(np.arange(batch_size * length), length)
    candidates = Position(sequence, time, np.zeros_like(time), np.zeros_like(time))
    for k in range(1, min(config.model.num_offsets, length - 1) + 1):
        first = np.arange(length - k)[:, None]  # the anchors of the first window
        anchors = Position(0 * first, first, 0 * first, 0 * first)
        if not np.any(rule(anchors, candidates, k)):
            raise UserError(
                f"the rule {rule.name} leaves a batch of {batch_size} windows no negatives at "
                f"offset {k}: raise data.batch_size, or choose another rule or window"
            )
