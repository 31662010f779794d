"""Audits: loops over every pair, closed forms, and samplers with known distributions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import negatives
from cpc.negatives.audit import (
    AuditRow,
    audit,
    audit_queue,
    audit_rule,
    audit_sampler,
    audit_table,
    format_audit,
)
from cpc.negatives.queue import make_queue, push
from cpc.negatives.samplers import hardest, mixed, uniform_draws, uniform_subset
from cpc.types import Position, UserError


def windows(b, t, groups=2):
    row = np.arange(b)[:, None]
    return Position(row, np.arange(t)[None], np.zeros((1, 1), int), row % groups)


def at_other_times(anchor, candidate, offset):
    """The rule of facebookresearch/CPC_audio: any window, any time but the anchor's."""
    return anchor.time != candidate.time


def numbers(rows):
    return {row.name: row.value for row in rows}


def test_accidental_hits_under_the_rule_of_cpc_audio():
    """128 draws from 8 windows of 128 latents: 1 - (1 - 1 / (127 b))^128."""
    options = {"sampler": uniform_draws(128), "num_anchors": 256}
    got = numbers(audit_rule(at_other_times, windows(8, 128), (1, 8), **options))
    predicted = 0.1184
    assert got["accidental_hits_predicted"] == pytest.approx(predicted, abs=5e-5)
    spread = np.sqrt(predicted / got["anchors"])
    assert got["accidental_hits"] == pytest.approx(predicted, abs=3.5 * spread)
    assert got["duplicates"] > 0


def test_audit_rule_equals_loops():
    """A user's rule that depends on all fields; some labels are unknown."""
    b, t, offsets = 3, 5, (1, 3)
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 3, (b, t))
    utterances = np.array([[0], [1], [0]])

    def rule(anchor, candidate, offset):
        return (candidate.time * 3 + candidate.sequence + anchor.time + offset) % 4 > 1

    used, hits, same, known, own, pairs, chance, with_same, labelled = [], *[0] * 8
    for k in offsets:
        for i, u in np.ndindex(b, t - k):
            target = labels[i, u + k]
            mine = [(j, v) for j, v in np.ndindex(b, t) if (v * 3 + j + u + k) % 4 > 1]
            used.append(len(mine))
            hits += (i, u + k) in mine
            own += sum(utterances[j, 0] == utterances[i, 0] for j, _ in mine)
            if target >= 0:
                known += sum(labels[place] >= 0 for place in mine)
                false = sum(labels[place] == target for place in mine)
                same, with_same, labelled = same + false, with_same + (false > 0), labelled + 1
                pairs += (labels >= 0).sum()
                chance += (labels == target).sum()
    got = numbers(audit_rule(rule, windows(b, t), offsets, labels=labels, utterances=utterances))
    assert got["anchors"] == len(used) == 18
    assert got["negatives_min"] == min(used) > 0
    expected = {
        "anchors_without_negative": 0,
        "negatives_mean": np.mean(used),
        "log_n": np.log1p(used).mean(),
        "accidental_hits": hits / 18,
        "false_negatives": same / known,
        "false_negatives_predicted": chance / pairs,
        "anchors_with_false_negatives": with_same / labelled,
        "same_utterance": own / sum(used),
        "effective_negatives": np.mean(used),
        "weight_entropy": np.mean(np.log(used)),
        "duplicates": 0.0,
    }
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-5), name
    assert 0 < hits < 18
    assert 0 < with_same < labelled
    assert "accidental_hits_predicted" not in got


def test_weights_of_a_sampler():
    """Two candidates with 3 and 1 of 4 draws: (3 + 1)^2 / (9 + 1) = 1.6."""

    def sampler(rng, positive, negatives, where):
        ids = jnp.argsort(~where, -1)[:, jnp.array([0, 1, 0, 0])]
        return jnp.take_along_axis(negatives, ids, -1), jnp.ones_like(ids, bool)

    got = numbers(audit_rule(negatives.excluding_sequence, windows(3, 4), [1], sampler=sampler))
    assert got["negatives_mean"] == got["negatives_min"] == 4
    assert got["effective_negatives"] == pytest.approx(1.6)
    assert got["weight_entropy"] == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    assert got["duplicates"] == 0.5
    assert got["log_n"] == pytest.approx(np.log(5))


def test_anchors_without_a_negative():
    options = {"labels": np.zeros((1, 6), int), "sampler": uniform_draws(3)}
    rule = negatives.excluding_sequence
    got = numbers(audit_rule(rule, windows(1, 6), [1, 2], **options))
    assert got["anchors"] == 5 + 4
    assert got["anchors_without_negative"] == 1.0
    nothing = ("negatives_min", "negatives_mean", "log_n", "effective_negatives", "weight_entropy")
    assert {got[name] for name in nothing} == {None}
    assert got["false_negatives"] is got["same_utterance"] is got["duplicates"] is None
    assert got["false_negatives_predicted"] == 1.0


def test_anchors_without_negatives_are_excluded_from_means():
    """Windows of 2, 2 and 4 latents: late anchors of the last one have no negatives."""
    there = np.arange(4) < np.array([2, 2, 4])[:, None]
    place = [np.broadcast_to(x, there.shape)[there] for x in windows(3, 4)]
    got = numbers(audit_rule(negatives.one_per_sequence, Position(*place), [1]))
    assert (got["anchors"], got["anchors_without_negative"]) == (5, 0.4)
    assert got["negatives_min"] == got["negatives_mean"] == 2
    assert got["log_n"] == pytest.approx(np.log(3))
    assert got["effective_negatives"] == pytest.approx(2)
    assert got["weight_entropy"] == pytest.approx(np.log(2))
    assert got["same_utterance"] == 0


def test_mining_is_audited_with_scores():
    """Scores reveal the label: all hardest negatives are false."""
    labels = np.random.default_rng(1).integers(0, 4, (4, 6))
    flat = jnp.asarray(labels.ravel())

    def scores(batch, anchors, offset):
        target = flat[jnp.minimum(anchors + offset, 23)]
        return (flat[None] == target[:, None]) + 0.001 * jnp.arange(24.0) + batch

    place = windows(4, 6)
    run = {"labels": labels, "sampler": hardest(2), "scores": scores}
    mined = numbers(audit_rule(negatives.batch, place, [1], **run))
    assert mined["false_negatives"] == 1.0
    assert mined["negatives_mean"] == 2
    mixtures = numbers(audit_rule(negatives.batch, place, [1], sampler=mixed(4, 10)))
    assert mixtures["negatives_mean"] == 23 + 10
    assert mixtures["duplicates"] == pytest.approx(10 / 33)


def test_batches_are_averaged():
    small, large = windows(2, 4), windows(5, 4)
    labels = [np.zeros((2, 4), int), np.arange(20).reshape(5, 4)]
    got = numbers(audit_rule(negatives.excluding_sequence, [small, large], [1], labels=labels))
    assert got["anchors"] == 3 * 2 + 3 * 5
    assert got["negatives_min"] == 4
    assert got["negatives_mean"] == pytest.approx((6 * 4 + 15 * 16) / 21)
    assert got["false_negatives"] == pytest.approx(24 / (24 + 240))


def test_many_anchors_are_sampled_in_blocks():
    """Each block has at most two million entries; the last one is padded."""
    seen, n = [], 256 * 128

    def scores(batch, anchors, offset):
        seen.append(np.asarray(anchors))
        return jnp.zeros((len(anchors), n))

    run = {"sampler": uniform_subset(7), "scores": scores, "num_anchors": 65}
    got = numbers(audit_rule(negatives.batch, windows(256, 128), [2], **run))
    assert got["negatives_mean"] == 7
    assert got["anchors"] <= 65
    assert [len(rows) for rows in seen] == [64] * 2
    assert len(np.unique(np.concatenate(seen)[:65])) == 65
    assert np.ptp(np.concatenate(seen)) > n / 2


def softmax_draw(q, shape):
    return jax.jit(lambda rng: jax.random.categorical(rng, jnp.log(jnp.asarray(q)), shape=shape))


def test_sampler_agrees_with_its_predictions():
    q = np.array([0.4, 0.3, 0.15, 0.1, 0.05, 0.0])
    labels = np.array([0, 1, 0, 1, 0, 1])
    targets = np.arange(40) % 5
    rows = audit_sampler(softmax_draw(q, (40, 8)), q, targets, labels=labels, num_rounds=200)
    got = numbers(rows)
    hit = np.mean(1 - (1 - q[targets]) ** 8)
    false = np.mean(np.array([0.6, 0.4])[labels[targets]] - q[targets])
    repeats = 1 - (1 - (1 - q) ** 8).sum() / 8
    assert got["accidental_hits_predicted"] == pytest.approx(hit)
    assert got["false_negatives_predicted"] == pytest.approx(false)
    assert got["duplicates_predicted"] == pytest.approx(repeats)
    for name in ("accidental_hits", "false_negatives", "duplicates"):
        assert got[name] == pytest.approx(got[f"{name}_predicted"], abs=0.01)
    assert got["effective_negatives_predicted"] == pytest.approx(8 * 25 / (1 / q[:5]).sum())
    assert got["impossible_draws"] == 0
    assert 0.02 < got["chi_square"] < 18.5 / 4  # 4 degrees of freedom
    assert got["classes"] == 5
    assert got["entropy"] == pytest.approx(-(q[:5] * np.log(q[:5])).sum())


def test_weights_of_shared_draws():
    """Ids 0, 0, 1 with q = 2/3, 1/3: weights 1, 1, 2 times 3/2."""
    draws, q = np.array([0, 0, 1]), np.array([2, 1])
    got = numbers(audit_sampler(lambda rng: draws, q, np.array([0, 1]), num_rounds=1))
    assert got["effective_negatives"] == pytest.approx(16 / 6)
    assert got["weight_entropy"] == pytest.approx(-(2 * 0.25 * np.log(0.25) + 0.5 * np.log(0.5)))
    assert got["duplicates"] == pytest.approx(1 / 3)
    assert got["accidental_hits"] == 1.0
    assert got["negatives_mean"] == 3


def test_wrong_probabilities_are_detected():
    draw, targets = softmax_draw(np.array([0.5, 0.25, 0.25]), (20, 10)), np.zeros(20, int)
    got = numbers(audit_sampler(draw, np.array([0.25, 0.25, 0.5]), targets, num_rounds=20))
    assert got["chi_square"] > 100
    got = numbers(audit_sampler(draw, np.array([1, 0, 1]), targets, num_rounds=20))
    assert got["impossible_draws"] == pytest.approx(1000, abs=150)


def test_table_of_probabilities_and_age_of_a_queue():
    got = numbers(audit_table(np.array([2, 1, 1, 0])))
    assert got["classes"] == 3
    assert got["entropy"] == pytest.approx(1.5 * np.log(2))
    assert got["effective_classes"] == pytest.approx(2**1.5)
    assert got["most_probable"] == 0.5
    here = Position(*(jnp.arange(2),) * 4)
    queue = push(push(make_queue(5, 1), jnp.ones((2, 1)), here, 3), jnp.ones((2, 1)), here, 10)
    assert [row.value for row in audit_queue(queue, 12)] == [5, 0.8, 2.0, 5.5, 9.0]


def test_audit_dispatches_on_its_arguments():
    place, counts, queue = windows(2, 3), np.array([1, 3]), make_queue(2, 2)

    def draw(rng):
        return jax.random.randint(rng, (4,), 0, 3)

    rows = audit_rule(negatives.batch, place, [1])
    assert audit(negatives.batch, place, [1]) == audit(negatives.batch, [place], [1]) == rows
    assert audit(counts) == audit_table(counts)
    assert audit(queue, 5) == audit_queue(queue, 5)
    assert audit(draw, np.ones(3), np.arange(2)) == audit_sampler(draw, np.ones(3), np.arange(2))
    with pytest.raises(UserError, match="positions or probabilities"):
        audit(draw)


def test_rows_are_serializable_and_printable():
    options = {"labels": np.full((1, 3), -1), "sampler": uniform_subset(1)}
    rows = audit_rule(negatives.batch, windows(1, 3), [1], **options)
    again = json.loads(json.dumps([row._asdict() for row in rows], allow_nan=False))
    assert tuple(AuditRow(**row) for row in again) == rows
    assert "unknown" in format_audit(rows)
    assert format_audit(()) == ""


RULE = {"rule": negatives.batch, "positions": windows(2, 4), "offsets": [1]}
SAMPLER = {"draw": lambda rng: jnp.arange(3), "q": np.ones(3), "targets": np.array([0])}


@pytest.mark.parametrize(("change", "message"), [
    ({"offsets": []}, r"offsets is \[\]"),
    ({"offsets": [0, 1]}, r"offsets is \[0, 1\]"),
    ({"offsets": [9]}, "a latent 9 steps after another"),
    ({"num_anchors": 0}, "num_anchors .*got 0"),
    ({"labels": np.zeros((2, 5), int)}, r"labels .*got shape \(2, 5\)"),
    ({"positions": [windows(2, 4)], "labels": [None, None]}, "labels has 2 batches"),
    ({"positions": windows(0, 4)}, "positions are empty"),
    ({"positions": Position(*(np.zeros(2, int),) * 4)}, "two latents at one position"),
    ({"sampler": hardest(9)}, "hardest needs 9 negatives but got 8"),
    ({"q": np.array([0.5, -0.5])}, "finite, 0 or more"),
    ({"q": np.ones(2)}, "2 classes .* ids 0 to 1"),
    ({"targets": np.array([7])}, "targets .*got 7 to 7"),
    ({"targets": np.array([], int)}, "targets have shape"),
    ({"draw": lambda rng: jnp.zeros(3)}, "drawn ids have shape"),
    ({"draw": lambda rng: jnp.zeros((5, 3), int)}, "do not fit"),
    ({"num_rounds": 0}, "num_rounds .*got 0"),
])  # fmt: skip
def test_invalid_arguments_are_rejected(change, message):
    of_sampler = change.keys() & {*SAMPLER, "num_rounds"}
    with pytest.raises(UserError, match=message):
        (audit_sampler if of_sampler else audit_rule)(**(SAMPLER if of_sampler else RULE) | change)
