"""What makes one problem differ from another, and where its variables lie in a state."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cpc.models import Model
from cpc.results import Score
from cpc.types import Batch
from experiments.objective import Direction, Objective

#: probe(variables, step) fits and records the probes, and returns their scores.
Probe: TypeAlias = Callable[[Any, int], list[Score]]


class Problem(NamedTuple):
    """What makes one problem differ from another."""

    model: Model
    objective: Objective
    offsets: tuple[tuple[int, ...], ...]
    """Steps ahead that each direction predicts."""
    directions: tuple[str, ...]
    """Names of the directions of prediction."""
    prepare: Callable[[Batch, Any, bool], Batch]
    """prepare(batch, rng, train) -> the batch as the model takes it, augmented, on the device."""
    split_directions: Callable[[Any, Batch], Sequence[Direction]]
    """split_directions(outputs, batch) -> outputs and positions of each direction, and which of its
    latents exist."""
    label: Callable[[Batch], dict[str, np.ndarray]]
    """label(batch) -> what latents are of, by name, as the positions broadcast; for audits."""
    draw: Callable[[int], Batch]
    """Index of a step -> its batch."""
    draw_test: Callable[[int], Batch] | None
    """Held-out batches, drawn as those of the training; None for no evaluation."""
    draw_any_test: Callable[[int], Batch] | None
    """Held-out batches of independently drawn sequences, for the strict bound."""
    num_tests: int
    """Batches in an evaluation."""
    per_step: tuple[float, str]
    """What a batch holds, and its unit, such as (0.003, "h audio")."""


def model_variables(params: Any, ema: Any, extra: Any) -> Any:
    """The model's variables as they are evaluated: the running average, if there is one."""
    # A checkpoint read without its state has no entry for what is empty.
    return {"params": (ema or params)["model"], **extra.get("model", {})}
