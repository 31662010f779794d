"""Rules, checked for every pair of positions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.types import Position, SoundPosition, UserError

ALL = [
    negatives.batch,
    negatives.excluding_sequence,
    negatives.own_sequence,
    negatives.same_group,
    negatives.one_per_sequence,
    negatives.outside_window(0),
    negatives.outside_window(2),
    negatives.outside_anchor(),
    negatives.within_shards(2, 4),
    negatives.same_group & negatives.excluding_sequence,
    negatives.batch & negatives.outside_window(1) & negatives.within_shards(4, 4),
]
PLACES = list(itertools.product(range(4), range(5), range(2)))  # sequence, time, lane
SPEAKER = (0, 0, 1, 0)


def every_pair():
    rows = np.array([(*place, SPEAKER[place[0]]) for place in PLACES])
    anchors = Position(*(column[:, None] for column in rows.T))
    candidates = Position(*(column[None] for column in rows.T))
    return anchors, candidates


def expected(name, anchor, candidate, offset):
    (i, t, lane), (j, u, other_lane) = anchor, candidate
    if (j, u, other_lane) == (i, t + offset, lane):
        return False
    return {
        "batch": True,
        "excluding_sequence": i != j,
        "own_sequence": i == j,
        "same_group": SPEAKER[i] == SPEAKER[j],
        "one_per_sequence": i != j and u == t + offset and lane == other_lane,
        "outside_window(0)": i != j or u != t + offset,
        "outside_window(2)": i != j or abs(u - (t + offset)) > 2,
        "outside_anchor": anchor != candidate,
        "within_shards(2)": i // 2 == j // 2,
        "same_group & excluding_sequence": SPEAKER[i] == SPEAKER[j] and i != j,
        "batch & outside_window(1) & within_shards(4)": i == j and abs(u - (t + offset)) > 1,
    }[name]


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_rules_equal_their_definition_for_every_pair(rule):
    for offset in (1, 3):
        allowed = np.asarray(rule(*every_pair(), offset))
        assert allowed.dtype == bool
        want = [[expected(rule.name, a, c, offset) for c in PLACES] for a in PLACES]
        np.testing.assert_array_equal(allowed, want)


def test_only_independent_negatives_are_called_a_bound():
    assert [rule.name for rule in ALL if rule.is_bound] == ["one_per_sequence"]
    one = negatives.one_per_sequence
    assert (one & negatives.within_shards(2, 4) & negatives.outside_window(2)).is_bound
    assert (negatives.batch & one).is_bound
    assert (negatives.batch & one).aligned
    assert (one & negatives.within_shards(2, 4) & negatives.within_shards(4, 4)).shard_size == 1
    assert not (one & negatives.same_group).is_bound, "negatives follow the anchor's speaker"


def test_invalid_sizes_are_named():
    for shards in (3, 0, 16):
        with pytest.raises(UserError, match=r"negatives\.shards"):
            negatives.within_shards(shards, 8)
    with pytest.raises(UserError, match=r"width .*got -1"):
        negatives.outside_window(-1)
    with pytest.raises(UserError, match=r"window_samples .*got 0"):
        negatives.outside_overlap(0)


#: Utterance and first sample of windows of 30 samples with 3 latents, which end at sample 25.
OVERLAPPING = ((0, 0), (0, 0), (0, 9), (0, 10), (0, 21), (0, 40), (1, 0), (1, 29))


@pytest.mark.parametrize("wraps", [0, 2**32 - 60], ids=["", "modulo 2^32"])
def test_outside_overlap_excludes_shared_samples(wraps):
    """Compare with sets of samples."""
    line = np.array([100, 200]) + wraps  # utterance starts
    rows = [(i, t) for i in range(len(OVERLAPPING)) for t in range(3)]
    sample = [line[OVERLAPPING[i][0]] + OVERLAPPING[i][1] + 10 * t for i, t in rows]
    window = [line[OVERLAPPING[i][0]] + OVERLAPPING[i][1] for i, _ in rows]
    zero = 0 * np.arange(len(rows))
    columns = (*np.array(rows).T, zero, zero, sample, np.array(sample) + 10, window)
    here = SoundPosition(*(jnp.asarray(np.asarray(x, np.int64).astype(np.int32)) for x in columns))
    anchors = jax.tree.map(lambda x: x[:, None], here)
    rule = negatives.outside_overlap(25)
    found = np.asarray((negatives.excluding_sequence & rule)(anchors, here, 1))
    for (i, t), allowed in zip(rows, found, strict=True):
        utterance, start = OVERLAPPING[i]
        heard = {(utterance, start + s) for s in range(25)}
        want = [
            i != j and heard.isdisjoint((v, first + 10 * u + s) for s in range(10))
            for j, u in rows
            for v, first in [OVERLAPPING[j]]
        ]
        assert allowed.tolist() == want, (i, t)
    own = np.asarray(rule(anchors, here, 1))[:3, :3]
    assert own.tolist() == [[True, False, True], [True, True, False], [True] * 3]
    assert not (negatives.one_per_sequence & rule).is_bound, "another sound may be there twice"
