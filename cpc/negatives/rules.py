"""Negative rules say which candidates may be negatives of an anchor at an offset.

The rows of Table 2 of van den Oord et al. (2018), by rule and by the batches that are drawn:

    mixed speaker                   batch                  batches that mix speakers
    same speaker                    batch                  batches of one speaker
    ... excluding current sequence  excluding_sequence     likewise
    current sequence only           own_sequence
"""

from cpc.types import Rule, UserError, is_aligned


def _same_sequence(anchor, candidate, offset):
    return anchor.sequence == candidate.sequence


#: Every other latent of the batch, those of the own sequence too. Latents of one sequence depend on
#: each other: log N - L is an estimate.
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

#: From each other sequence the one latent at the positive's time and lane: independent draws from
#: the marginal, so that log N - L is a bound.
one_per_sequence = Rule(
    "one_per_sequence",
    lambda anchor, candidate, offset: (
        (anchor.sequence != candidate.sequence) & is_aligned(anchor, candidate, offset)
    ),
    independent=True,
    aligned=True,
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

    Raises:
      UserError: a window below 1.
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

    Raises:
      UserError: the batch does not divide into that many shards.
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
