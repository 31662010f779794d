"""Negative rules say which candidates may be negatives of an anchor at an offset.

The rows of Table 2 of van den Oord et al. (2018), by rule and by the batches that are drawn:

    mixed speaker                   batch                  batches that mix speakers
    same speaker                    batch                  batches of one speaker
    ... excluding current sequence  excluding_sequence     likewise
    current sequence only           own_sequence
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from cpc.types import Position, UserError


@dataclasses.dataclass(frozen=True)
class Rule:
    """rule(anchor, candidate, offset) -> bool, broadcast over the two positions.

    The positive (same sequence, same lane, time + offset) is never a negative, under any rule.
    Rules join with `&`.
    """

    name: str
    allows: Callable[[Position, Position, Any], Any]
    independent: bool | None = None
    """True: the negatives are independent of the anchor and of each other, if windows are drawn
    independently. False: they depend on the anchor's content. None: as independent as whatever
    other rules leave."""

    same_place: bool = False
    """Only, and all, latents of other sequences at the positive's time and lane: what is allowed
    needs no look at positions, and `cpc_loss` scores nothing else."""
    num_shares: int = 1
    """The batch's sequences, in order, are so many equal shares, and no negative is of another one:
    `cpc_loss` scores each share by itself."""

    @property
    def is_bound(self) -> bool:
        """Whether log N - L is a lower bound on mutual information under this rule.

        If all windows of a batch are one group's, it bounds the information given the group.
        """
        return self.independent is True

    def __call__(self, anchor: Position, candidate: Position, offset: Any) -> Any:
        """True where the candidate may be a negative of the anchor."""
        return self.allows(anchor, candidate, offset) & ~is_positive(anchor, candidate, offset)

    def __and__(self, other: "Rule") -> "Rule":
        """Both rules allow it; fewer independent negatives are still independent."""
        both = (self.independent, other.independent)
        return Rule(
            f"{self.name} & {other.name}",
            lambda *args: self.allows(*args) & other.allows(*args),
            False if False in both else True if True in both else None,
            num_shares=max(self.num_shares, other.num_shares),
        )


def is_positive(anchor: Position, candidate: Position, offset: Any) -> Any:
    """The latent that the anchor predicts."""
    return (
        (anchor.sequence == candidate.sequence)
        & (anchor.lane == candidate.lane)
        & (anchor.time + offset == candidate.time)
    )


def _same_sequence(anchor, candidate, offset):
    return anchor.sequence == candidate.sequence


#: Every other latent of the batch, those of the own sequence too. A score: latents of one sequence
#: depend on each other.
batch = Rule("batch", lambda anchor, candidate, offset: _same_sequence(anchor, candidate, 0) | True)

#: Latents of other sequences only.
excluding_sequence = Rule(
    "excluding_sequence",
    lambda anchor, candidate, offset: ~_same_sequence(anchor, candidate, offset),
)

#: Latents of the own sequence only.
own_sequence = Rule("own_sequence", _same_sequence, independent=False)

#: Latents of the same group (speaker) only.
same_group = Rule(
    "same_group",
    lambda anchor, candidate, offset: anchor.group == candidate.group,
    independent=False,
)

#: From each other sequence the one latent at the positive's place: independent draws from the
#: marginal, so that log N - L is a bound.
one_per_sequence = Rule(
    "one_per_sequence",
    lambda anchor, candidate, offset: (
        (anchor.sequence != candidate.sequence)
        & (anchor.lane == candidate.lane)
        & (anchor.time + offset == candidate.time)
    ),
    independent=True,
    same_place=True,
)


def outside_window(width: int) -> Rule:
    """Leaves out the latents of the own sequence at most `width` steps from the positive.

    The window belongs around the target t + k, not around the anchor t; `width` 0 leaves out the
    positive alone.

    Raises:
      UserError: a negative width.
    """
    if width < 0:
        raise UserError(f"the negatives' window is {width} latents: it must be 0 or more")

    def allows(anchor, candidate, offset):
        lag = candidate.time - (anchor.time + offset)
        inside = (lag >= -width) & (lag <= width)
        return ~(_same_sequence(anchor, candidate, offset) & inside)

    return Rule(f"outside_window({width})", allows)


def within_shards(num_shards: int, batch_size: int) -> Rule:
    """Negatives from the own share of the batch, as if each of `num_shards` devices had its own.

    The paper trained on 8 devices with 8 windows each: within_shards(8, 64), on any devices.

    Raises:
      UserError: the batch does not divide into that many shares.
    """
    if num_shards < 1 or batch_size % num_shards:
        raise UserError(
            f"a batch of {batch_size} does not divide into {num_shards} groups of negatives: "
            "choose negatives.groups so that it divides data.batch_size"
        )
    size = batch_size // num_shards
    return Rule(
        f"within_shards({num_shards})",
        lambda anchor, candidate, offset: anchor.sequence // size == candidate.sequence // size,
        num_shares=num_shards,
    )
