"""Negative rules say which candidates may be negatives of an anchor at an offset.

The rows of Table 2 of van den Oord et al. (2018), by rule and by the batches that are drawn:

    mixed speaker                   batch                  batches that mix speakers
    same speaker                    batch                  batches of one speaker
    ... excluding current sequence  excluding_sequence     likewise
    current sequence only           own_sequence
"""

from collections.abc import Callable
from typing import Any

from cpc.types import Rule, UserError, is_aligned


def _same_sequence(anchor, candidate, offset):
    return anchor.sequence == candidate.sequence


def _as_rule(**structure: Any) -> Callable[[Callable[..., Any]], Rule]:
    """Make a rule of a function, with its name and its docstring."""
    return lambda allows: Rule(allows.__name__, allows, **structure)


@_as_rule()
def batch(anchor, candidate, offset):
    """Allow every other latent of the batch, also those of the anchor's own sequence.

    Latents of one sequence depend on each other: log N - L is an estimate.
    """
    return _same_sequence(anchor, candidate, offset) | True


@_as_rule()
def excluding_sequence(anchor, candidate, offset):
    """Allow latents of other sequences only.

    Latents of one sequence depend on each other: log N - L is an estimate. A batch needs two
    sequences or more.
    """
    return ~_same_sequence(anchor, candidate, offset)


@_as_rule(independent=False)
def own_sequence(anchor, candidate, offset):
    """Allow latents of the anchor's own sequence only: log N - L is an estimate."""
    return _same_sequence(anchor, candidate, offset)


@_as_rule(independent=False)
def same_group(anchor, candidate, offset):
    """Allow latents of the anchor's group (speaker) only: log N - L is an estimate."""
    return anchor.group == candidate.group


@_as_rule(independent=True, aligned=True)
def one_per_sequence(anchor, candidate, offset):
    """Allow one latent of each other sequence, that at the positive's time and lane.

    These are independent draws from the marginal if sequences are drawn independently: log N - L
    is then a lower bound on mutual information. A batch needs two sequences or more.
    """
    return (anchor.sequence != candidate.sequence) & is_aligned(anchor, candidate, offset)


def outside_window(width: int) -> Rule:
    """Leaves out the latents of the own sequence at most `width` steps from the positive.

    The window belongs around the target t + k, not around the anchor t; `width` 0 leaves out the
    positive alone.
    """
    if width < 0:
        raise UserError(f"the negatives' window is {width} latents: it must be 0 or more")

    def allows(anchor, candidate, offset):
        lag = candidate.time - (anchor.time + offset)
        inside = (lag >= -width) & (lag <= width)
        return ~(_same_sequence(anchor, candidate, offset) & inside)

    return Rule(f"outside_window({width})", allows)


def outside_anchor() -> Rule:
    """Leaves out the anchor's own latent, which is no answer to what its neighbours are.

    A context that has seen its own latent gives it no score worth the name; an encoder of the
    latent alone, as in Quick-Thoughts, could give it the highest.
    """

    def allows(anchor, candidate, offset):
        is_own = _same_sequence(anchor, candidate, offset) & (candidate.time == anchor.time)
        return ~(is_own & (candidate.lane == anchor.lane))

    return Rule("outside_anchor", allows)


def outside_overlap(window_samples: int) -> Rule:
    """Leaves out the sound of the anchor's window where other windows of the recording hold it.

    Two windows of one recording are two sequences, and where they overlap the same sound would be
    contrasted with itself. A latent of another window is left out if one of its samples, those
    from `sample` to `end` of a `SoundPosition`, is one of the `window_samples` from the anchor's
    `window` on: two integers are compared. Of the own sequence nothing is left out.

    What is left depends on the anchor, and another sound may still be there twice: log N - L is an
    estimate. (`cpc.estimators.bound_over_sequences` counts each sound once.)
    """
    if window_samples < 1:
        raise UserError(f"windows of {window_samples} samples: it must be 1 or more")

    def allows(anchor, candidate, offset):
        before = candidate.end - anchor.window <= 0
        after = candidate.sample - anchor.window >= window_samples
        return before | after | _same_sequence(anchor, candidate, offset)

    return Rule(f"outside_overlap({window_samples})", allows, independent=False)


def within_shards(num_shards: int, batch_size: int) -> Rule:
    """Negatives from the own shard of the batch, as if each of `num_shards` devices had its own.

    The paper trained on 8 devices with 8 windows each: within_shards(8, 64), on any devices.
    """
    if num_shards < 1 or batch_size % num_shards:
        raise UserError(
            f"a batch of {batch_size} does not divide into {num_shards} shards of negatives: "
            "choose negatives.shards so that it divides data.batch_size"
        )
    size = batch_size // num_shards
    return Rule(
        f"within_shards({num_shards})",
        lambda anchor, candidate, offset: anchor.sequence // size == candidate.sequence // size,
        shard_size=size,
    )


#: Rules that need no numbers, by the word that configs have for them.
RULES = {
    rule.name: rule
    for rule in (batch, excluding_sequence, own_sequence, same_group, one_per_sequence)
}
