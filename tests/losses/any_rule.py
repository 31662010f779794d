"""A rule chosen by its positions, the CPC loss as loops over anchors, and a comparison of trees."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.types import NegativeRule, Position, Rule, SoundPosition


def assert_same(found: Any, want: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def any_rule(rules: Sequence[NegativeRule]) -> Rule:
    """Return a rule that applies rules[i] to anchors whose `sample` is i."""

    def allows(anchor: Any, candidate: Any, offset: Any) -> Any:
        allowed = False
        for i, rule in enumerate(rules):
            allowed |= (anchor.sample == i) & rule(anchor, candidate, offset)
        return allowed

    return Rule("any", allows)


def with_index(positions: Position, index: int) -> SoundPosition:
    """Return positions that select rules[index] of `any_rule`."""
    shape = np.broadcast_shapes(*map(np.shape, positions))
    return SoundPosition(*positions, *(jnp.full(shape, x, jnp.int32) for x in (index, 0, 0)))


def contrasts(
    z: Any, predictions: Any, positions: Position, rule: NegativeRule, offsets: Sequence[int],
    where: Any = None, memory: Any = None, tau: float = 1.0,
) -> Iterator[tuple]:  # fmt: skip
    """Yield (row, anchor, target, negatives, scores (n, k)) of each counted anchor, in float64.

    Rows count offsets; other indices are into the flat latents followed by those of the memory.
    """
    place = [np.broadcast_to(p, z.shape[:-1]).ravel() for p in positions[:4]]
    keys, num = np.float64(z).reshape(-1, z.shape[-1]), z[..., 0].size
    mask = np.ones(num, bool) if where is None else np.ravel(where)
    queries = np.float64(predictions).reshape(num, -1, z.shape[-1])
    if memory is not None:
        place = [np.concatenate(both) for both in zip(place, memory.positions, strict=True)]
        keys, mask = np.concatenate([keys, memory.keys]), np.concatenate([mask, memory.mask])
    rows, columns = (Position(*(p[cut] for p in place)) for cut in ((slice(None), None), (None,)))
    sequence, time, lane, _ = place
    for row, k in enumerate(offsets):
        pairs = np.broadcast_to(np.asarray(rule(rows, columns, k)), (len(keys),) * 2) & mask
        for i in np.flatnonzero(mask[:num]):
            target = (sequence == sequence[i]) & (time == time[i] + k) & (lane == lane[i]) & mask
            if target.any() and pairs[i].any():
                scores = keys @ queries[i].T / tau
                yield row, i, int(target.argmax()), np.flatnonzero(pairs[i]), scores
