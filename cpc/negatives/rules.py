"""Negative rules, which decide whether a candidate may be a negative of an anchor at an offset.

Each row of Table 2 in van den Oord et al. (2018) corresponds to a rule and a way to draw batches:

    mixed speaker                   batch                  batches that mix speakers
    same speaker                    batch                  batches of one speaker
    ... excluding current sequence  excluding_sequence     the same as above
    current sequence only           own_sequence
"""

from collections.abc import Callable
from typing import Any

from cpc.types import Rule, UserError, check_number, is_aligned


def _same_sequence(anchor, candidate, offset):
    return anchor.sequence == candidate.sequence


def _as_rule(**structure: Any) -> Callable[[Callable[..., Any]], Rule]:
    """Return a decorator that turns a function into a rule with the function's name."""
    return lambda allows: Rule(allows.__name__, allows, **structure)


@_as_rule()
def batch(anchor, candidate, offset):
    """Allow every other latent of the batch, including latents of the anchor's own sequence.

    Latents of one sequence depend on each other, so log N - L is an estimate.
    """
    return _same_sequence(anchor, candidate, offset) | True


@_as_rule()
def excluding_sequence(anchor, candidate, offset):
    """Allow latents of other sequences only.

    Latents of one sequence depend on each other, so log N - L is an estimate. A batch needs at
    least two sequences.
    """
    return ~_same_sequence(anchor, candidate, offset)


@_as_rule(independent=False)
def own_sequence(anchor, candidate, offset):
    """Allow only latents of the anchor's own sequence, so log N - L is not a bound."""
    return _same_sequence(anchor, candidate, offset)


@_as_rule(independent=False)
def same_group(anchor, candidate, offset):
    """Allow only latents of the anchor's group, such as its speaker. log N - L is not a bound."""
    return anchor.group == candidate.group


@_as_rule(independent=True, aligned=True)
def one_per_sequence(anchor, candidate, offset):
    """Allow one latent from each other sequence, at the time and lane of the positive.

    If sequences are drawn independently, these latents are independent draws from the marginal, and
    log N - L is a lower bound on mutual information. A batch needs at least two sequences.
    """
    return (anchor.sequence != candidate.sequence) & is_aligned(anchor, candidate, offset)


def outside_window(width: int) -> Rule:
    """Return a rule that excludes the positive's neighbours within the anchor's sequence.

    Latents at most `width` steps from the target t + k, not from the anchor t, are excluded.
    """
    check_number("width", width, least=0)

    def allows(anchor, candidate, offset):
        lag = candidate.time - (anchor.time + offset)
        inside = (lag >= -width) & (lag <= width)
        return ~(_same_sequence(anchor, candidate, offset) & inside)

    return Rule(f"outside_window({width})", allows)


def outside_anchor() -> Rule:
    """Return a rule that excludes the anchor's own latent, which is never the positive.

    A context network that has seen this latent can learn to give it a low score, but an encoder
    without context, as in Quick-Thoughts, could give it the highest score of all candidates.
    """

    def allows(anchor, candidate, offset):
        is_own = _same_sequence(anchor, candidate, offset) & (candidate.time == anchor.time)
        return ~(is_own & (candidate.lane == anchor.lane))

    return Rule("outside_anchor", allows)


def outside_overlap(window_samples: int) -> Rule:
    """Return a rule that excludes latents of other sequences that overlap the anchor's window.

    Two overlapping windows of one recording are two sequences, so without this rule a sound could
    be contrasted with itself. A latent of another sequence is excluded if its samples, from
    `sample` to `end` of its `SoundPosition`, intersect the `window_samples` samples that start at
    the anchor's `window`. Latents of the anchor's own sequence are never excluded.

    The remaining candidates depend on the anchor, and other sounds may still occur twice, so
    log N - L is not a bound (`cpc.estimators.bound_over_sequences` counts each sound once).
    """
    check_number("window_samples", window_samples, least=1)

    def allows(anchor, candidate, offset):
        before = candidate.end - anchor.window <= 0
        after = candidate.sample - anchor.window >= window_samples
        return before | after | _same_sequence(anchor, candidate, offset)

    return Rule(f"outside_overlap({window_samples})", allows, independent=False)


def within_shards(num_shards: int, batch_size: int) -> Rule:
    """Return a rule that allows only negatives from the anchor's shard of the batch.

    This reproduces training with separate negatives on each of `num_shards` devices. The paper used
    8 devices with 8 windows each, which within_shards(8, 64) reproduces on any number of devices.
    """
    if num_shards < 1 or batch_size % num_shards:
        problem = f"data.batch_size {batch_size} does not divide into {num_shards} shards"
        raise UserError(f"{problem}: set negatives.shards to a divisor of data.batch_size")
    size = batch_size // num_shards
    return Rule(
        f"within_shards({num_shards})",
        lambda anchor, candidate, offset: anchor.sequence // size == candidate.sequence // size,
        shard_size=size,
    )


#: Rules without parameters, by the name that configs use.
RULES = {
    rule.name: rule
    for rule in (batch, excluding_sequence, own_sequence, same_group, one_per_sequence)
}
