"""CTC for utterances whose phones have no times: loss, decoding, and edit counts for error rates.

In connectionist temporal classification (Graves et al. 2006) each frame has a label or the blank,
which is the last class. Removing repeats and then blanks from such a path gives its labelling.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from cpc.types import UserError


class Edits(NamedTuple):
    """Numbers of edits from one labelling to another, which sum to the Levenshtein distance."""

    substitutions: int
    deletions: int
    insertions: int


def ctc_nats(
    scores: Float[Array, "b t classes"], num_frames: Int[Array, " b"], labels: Int[Array, "b n"]
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Return the sum of -log p(labels | scores) in nats, and the number of labels in this sum.

    Scores are unnormalised, the last class is the blank, and labels are padded with -1. Utterances
    are left out if their labels, with a blank between equal ones, outnumber their frames.

    If scores are uniform, 3 of the 9 paths through two frames result in the given label:

    >>> nats, count = ctc_nats(jnp.zeros((1, 2, 3)), jnp.array([2]), jnp.array([[1, -1]]))
    >>> f"{nats:.4f} {np.log(9 / 3):.4f} {count}"
    '1.0986 1.0986 1'
    """
    is_label = labels >= 0
    counts = is_label.sum(axis=1, dtype=jnp.int32)
    repeats = (is_label[:, 1:] & (labels[:, 1:] == labels[:, :-1])).sum(axis=1)
    fits = (counts + repeats <= num_frames) & (counts > 0)
    beyond = jnp.arange(scores.shape[1]) >= num_frames[:, None]
    nats = optax.ctc_loss(
        jnp.where(beyond[..., None], 0.0, scores.astype(jnp.float32)),
        beyond.astype(jnp.float32),
        jnp.maximum(labels, 0),
        1 - is_label.astype(jnp.float32),
        blank_id=scores.shape[-1] - 1,
    )
    total = jnp.where(fits, nats, 0.0).sum(dtype=jnp.float32)
    return total, jnp.where(fits, counts, 0).sum(dtype=jnp.int32)


def collapse(path: Sequence[int] | np.ndarray, blank: int) -> list[int]:
    """Convert a path to its labelling by removing repeats and then blanks.

    >>> collapse([9, 1, 1, 9, 1, 2, 2], blank=9)
    [1, 1, 2]
    """
    return [int(one) for one, _ in itertools.groupby(path) if one != blank]


def greedy_decode(log_p: Float[np.ndarray, "t classes"]) -> list[int]:
    """Return the most probable path's labelling.

    >>> greedy_decode(np.log([[0.6, 0.1, 0.3], [0.5, 0.1, 0.4], [0.1, 0.2, 0.7]]))
    [0]
    """
    return collapse(log_p.argmax(axis=1), log_p.shape[1] - 1)


def beam_decode(log_p: Float[np.ndarray, "t classes"], width: int) -> list[int]:
    """Return the labelling with the highest total path probability that a beam search finds.

    The search keeps `width` prefixes after each frame (Hannun et al. 2014, Algorithm 1, without a
    language model).

    The most probable path is empty (0.36), but the label is more probable (0.64):

    >>> log_p = np.log([[0.4, 0.6], [0.4, 0.6]])
    >>> greedy_decode(log_p), beam_decode(log_p, width=2)
    ([], [0])
    """
    if width < 1:
        raise UserError(f"beam width must be at least 1 (got {width})")
    blank = log_p.shape[1] - 1
    prefixes: list[tuple[int, ...]] = [()]
    # For each prefix, log-probabilities of its paths that end in a blank or in its last label.
    in_blank, in_label = np.zeros(1), np.full(1, -np.inf)
    for frame in np.asarray(log_p, np.float64):
        both = np.logaddexp(in_blank, in_label)
        place = {prefix: i for i, prefix in enumerate(prefixes)}
        longer = both[:, None] + frame[:blank]
        stays = np.full(len(prefixes), -np.inf)
        for i, prefix in enumerate(prefixes):
            if prefix:  # repeating a label needs a blank before it
                longer[i, prefix[-1]] = in_blank[i] + frame[prefix[-1]]
                stays[i] = in_label[i] + frame[prefix[-1]]
        for i, prefix in enumerate(prefixes):
            before = place.get(prefix[:-1]) if prefix else None
            if before is not None:  # the prefix can stay, or a shorter one can grow to it
                stays[i] = np.logaddexp(stays[i], longer[before, prefix[-1]])
                longer[before, prefix[-1]] = -np.inf
        waits = both + frame[blank]
        totals = np.concatenate([np.logaddexp(waits, stays), longer.ravel()])
        kept = np.argsort(-totals, kind="stable")[:width]
        kept = kept[totals[kept] > -np.inf]
        is_longer = kept >= len(prefixes)
        row, label = np.divmod(kept - len(prefixes), max(blank, 1))
        old = np.where(is_longer, 0, kept)
        in_blank = np.where(is_longer, -np.inf, waits[old])
        in_label = np.where(is_longer, totals[kept], stays[old])
        prefixes = [
            (*prefixes[r], int(one)) if new else prefixes[o]
            for new, o, r, one in zip(is_longer, old, row, label, strict=True)
        ]
    best = np.logaddexp(in_blank, in_label).argmax()
    return list(prefixes[int(best)])


def count_edits(wanted: Sequence[int], given: Sequence[int]) -> Edits:
    """Count the fewest edits that turn the wanted labelling into the given one.

    If several edit sequences are equally short, the one with the most substitutions is counted.

    >>> count_edits([1, 2, 3, 4, 5, 6], [9, 2, 4, 5, 6, 7])
    Edits(substitutions=1, deletions=1, insertions=1)
    """
    # Cells are (edits, deletions, insertions), which are compared in this order.
    row = [(j, 0, j) for j in range(len(given) + 1)]
    for i, want in enumerate(wanted, start=1):
        new = [(i, i, 0)]
        for j, give in enumerate(given, start=1):
            total, deleted, inserted = row[j - 1]
            other = min(
                (row[j][0] + 1, row[j][1] + 1, row[j][2]),
                (new[j - 1][0] + 1, new[j - 1][1], new[j - 1][2] + 1),
            )
            new.append(min((total + (want != give), deleted, inserted), other))
        row = new
    total, deleted, inserted = row[-1]
    return Edits(total - deleted - inserted, deleted, inserted)
