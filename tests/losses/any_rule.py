"""A rule whose positions name the rule to apply, so that one compiled program serves many."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.types import NegativeRule, Position, Rule, SoundPosition


def any_rule(rules: Sequence[NegativeRule]) -> Rule:
    """Return the rule that applies rules[i] to an anchor whose `sample` is i."""

    def allows(anchor: Any, candidate: Any, offset: Any) -> Any:
        allowed = False
        for i, rule in enumerate(rules):
            allowed |= (anchor.sample == i) & rule(anchor, candidate, offset)
        return allowed

    return Rule("any", allows)


def with_index(positions: Position, index: int) -> SoundPosition:
    """Return the positions under rules[index] of `any_rule`."""
    shape = np.broadcast_shapes(*map(np.shape, positions))
    return SoundPosition(*positions, *(jnp.full(shape, x, jnp.int32) for x in (index, 0, 0)))


def every_pair(positions: Position, rule: NegativeRule, offset: int) -> np.ndarray:
    """Return whether the rule allows each pair of flat positions (n,), as a matrix (n, n)."""
    rows, columns = (Position(*(np.asarray(p)[cut] for p in positions))
                     for cut in ((slice(None), None), (None,)))  # fmt: skip
    n = len(rows.sequence)
    return np.broadcast_to(np.asarray(rule(rows, columns, offset)), (n, n))


def flatten(positions: Position, shape: tuple[int, ...]) -> Position:
    """Return positions that broadcast to a shape as flat arrays."""
    return jax.tree.map(lambda p: np.broadcast_to(p, shape).ravel(), positions)
