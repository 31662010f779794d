"""Audits of negative rules, samplers, noise distributions and queues before training.

An audit is a tuple of `AuditRow`, which are named numbers with units and meanings. Predicted values
follow the observed ones. No model is needed, but samplers of hard negatives can use its scores.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Num
from scipy.special import entr

from cpc.negatives.noise import accidental_hits, hit_rate, probabilities
from cpc.negatives.queue import Queue, ages
from cpc.types import (
    AnyPosition,
    Array,
    ArrayLike,
    NegativeRule,
    NegativeSampler,
    UserError,
    check_function,
    check_number,
    check_type,
    is_positive,
)


class AuditRow(NamedTuple):
    """One number of an audit. The result of `_asdict()` can be written to JSON."""

    name: str
    value: float | int | None
    """The number, or None if it is undefined, such as a mean over zero anchors."""
    unit: str
    meaning: str


Audit: TypeAlias = tuple[AuditRow, ...]
#: Unit and meaning of each number by name. NAME_predicted is the predicted value of NAME.
WORDS = {
    "anchors": ("anchors", "that have a positive, over all batches and offsets"),
    "anchors_without_negative": ("of anchors", "are left out of the loss"),
    "negatives_min": ("negatives", "per anchor in the loss, at least"),
    "negatives_mean": ("negatives", "per anchor in the loss, on average"),
    "log_n": ("nats", "ceiling of log N - L, with N = negatives + 1"),
    "accidental_hits": ("of anchors", "have their own positive among their negatives"),
    "accidental_hits_predicted": ("of anchors", "if draws were independent: 1 - (1 - q)^K"),
    "false_negatives": ("of negatives", "with a known label have the label of the positive"),
    "false_negatives_predicted": ("of negatives", "if draws were independent of the labels"),
    "anchors_with_false_negatives": ("of anchors", "have a negative with the positive's label"),
    "same_utterance": ("of negatives", "come from the recording of the anchor"),
    "effective_negatives": ("negatives", "sample size of the weights, (sum w)^2 / sum w^2"),
    "effective_negatives_predicted": ("negatives", "K V^2 / sum 1 / q, for many draws"),
    "weight_entropy": ("nats", "of the weights, at most the log of the number of negatives"),
    "duplicates": ("of negatives", "repeat or mix negatives that the anchor already has"),
    "duplicates_predicted": ("of negatives", "if draws were independent"),
    "classes": ("classes", "can be drawn"),
    "entropy": ("nats", "of the distribution"),
    "effective_classes": ("classes", "exp of the entropy"),
    "most_probable": ("of draws", "are of the most probable class"),
    "impossible_draws": ("draws", "of classes with q = 0"),
    "chi_square": ("per degree", "of freedom, about 1 if the draws follow q"),
    "queue_size": ("latents", "fit into the queue"),
    "queue_filled": ("of slots", "hold a latent"),
    "age_min": ("steps", "since the newest latent was added"),
    "age_mean": ("steps", "since a latent was added, on average"),
    "age_max": ("steps", "since the oldest latent was added"),
}


def make_rows(**values: Any) -> Audit:
    """Return one row per value, with the unit and meaning from `WORDS`."""
    return tuple(AuditRow(name, value, *WORDS[name]) for name, value in values.items())


def format_audit(rows: Audit) -> str:
    """Format an audit as text with aligned columns and one line per row.

    >>> print(format_audit((AuditRow("log_n", 2.0794415, "nats", "ceiling"),
    ...                     AuditRow("anchors", 1024, "", "with a positive"))))
    log_n    2.079 nats  ceiling
    anchors  1,024       with a positive
    """
    values = [_format(row.value) for row in rows]
    columns = [row.name for row in rows], values, [row.unit for row in rows]
    names, numbers, units = (max(map(len, column), default=0) for column in columns)
    return "\n".join(
        f"{row.name:<{names}}  {value:>{numbers}} {row.unit:<{units}}  {row.meaning}"
        for row, value in zip(rows, values, strict=True)
    )


def _format(value):
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def audit(subject: Any, *data: Any, **options: Any) -> Audit:
    """Audit a rule, sampler, noise distribution or queue with the function for its type.

        audit(rule, positions, offsets, ...)   audit_rule, for one or several batches
        audit(draw, q, targets, ...)           audit_sampler
        audit(q)                               audit_table
        audit(queue, step)                     audit_queue

    Raises:
      UserError: `subject` is a function and `data` is empty.

    >>> [row.name for row in audit(np.array([3.0, 1.0]))][:2]
    ['classes', 'entropy']
    """
    if isinstance(subject, Queue):
        return audit_queue(subject, *data, **options)
    if not callable(subject):
        return audit_table(subject, *data, **options)
    if not data:
        raise UserError("audit of a function has no data: also pass positions or probabilities")
    several = isinstance(data[0], list | tuple) and all(isinstance(p, AnyPosition) for p in data[0])
    if several or isinstance(data[0], AnyPosition):
        return audit_rule(subject, *data, **options)
    return audit_sampler(subject, *data, **options)


def audit_rule(
    rule: NegativeRule,
    positions: AnyPosition | Sequence[AnyPosition],
    offsets: Sequence[int],
    *,
    labels: Any = None,
    utterances: Any = None,
    sampler: NegativeSampler | None = None,
    scores: Callable[[int, Array, int], Array] | None = None,
    rng: Array | None = None,
    num_anchors: int = 1024,
) -> Audit:
    """Audit the negatives that a rule and an optional sampler give to the anchors.

    A negative's weight is the number of times that the loss uses it, computed as the derivative of
    the summed sampled scores by its score. Accidental hits of a sampler are predicted for uniform
    draws with replacement from the allowed candidates, and false negatives for a uniform draw from
    the batch.

    Args:
      positions: positions of the unmasked latents in a batch, as arrays that broadcast, or a list
        of positions for several batches.
      offsets: prediction offsets k. All numbers are computed over all offsets together.
      labels: class of each latent, in the format of the positions. Classes below 0 are unknown. A
        negative with the positive's class is a false negative.
      utterances: each latent's recording, in the same format. Defaults to the sequence.
      sampler: sampler that is applied after the rule. By default all allowed negatives are used.
      scores: scores(batch, anchors (m,), offset) -> (m, n), by default independent normal scores.
      num_anchors: maximum number of anchors per batch and offset. Larger batches are subsampled.

    >>> from cpc.types import Position
    >>> here = Position.grid(2, 3)  # 2 sequences of 3 latents
    >>> rows = audit_rule(lambda anchor, other, offset: anchor.time != other.time, here, [1])
    >>> {row.name: row.value for row in rows}["accidental_hits"]
    1.0
    """
    check_function("rule", rule, 3, "pass a rule such as cpc.negatives.batch")
    if sampler is not None:
        check_function("sampler", sampler, 4, "pass cpc.negatives.uniform_draws(16), for example")
    offsets = [int(k) for k in offsets]
    if not offsets or min(offsets) < 1:
        raise UserError(f"offsets is {offsets}: pass at least one offset, each at least 1")
    check_number("num_anchors", num_anchors, least=1)
    rng = jax.random.key(0) if rng is None else rng
    tally = _make_tally(rule, sampler)
    blocks = []
    for i, batch in enumerate(_batches(positions, labels, utterances)):
        n = len(batch[0].time)
        for k in offsets:
            key = jax.random.fold_in(jax.random.fold_in(rng, i), k)
            for j, (rows, real) in enumerate(_blocks(key, n, num_anchors)):
                drawing, scoring = jax.random.split(jax.random.fold_in(key, j))
                score = None
                if scores is not None:
                    score = jnp.asarray(scores(i, jnp.asarray(rows), k), jnp.float32)
                elif sampler is not None:
                    score = jax.random.normal(scoring, (len(rows), n), jnp.float32)
                blocks.append(tally(*batch, rows, real, k, score, drawing))
    sums = {name: sum(float(block[name]) for block in blocks) for name in blocks[0]}
    sums["fewest"] = min(float(block["fewest"]) for block in blocks)
    if not sums["anchors"]:
        problem = f"no sequence has a latent {min(offsets)} steps after another"
        raise UserError(f"{problem}: increase data.window_samples or data.window_steps")
    return _rule_rows(sums, sampler is not None, labels is not None)


def _batches(positions, labels, utterances):
    """Return flattened positions, labels and utterances for each batch."""
    if isinstance(positions, AnyPosition):
        positions = [positions]
        labels, utterances = ([x] if x is not None else None for x in (labels, utterances))
    fix = "pass Position.grid(b, t), or a list of the positions of several batches"
    check_type("positions", positions, list | tuple, fix)
    for batch in positions:
        check_type("positions of a batch", batch, AnyPosition, fix)
    for name, values in (("labels", labels), ("utterances", utterances)):
        if values is not None and len(values) != len(positions):
            problem = f"{name} has {len(values)} batches but positions has {len(positions)}"
            raise UserError(f"{problem}: pass one array per batch")
    unknown = [None] * len(positions)
    labels, utterances = (unknown if x is None else x for x in (labels, utterances))
    return [
        (
            _flat(batch),
            _like("labels", -1 if label is None else label, batch),
            _like("utterances", batch.sequence if utterance is None else utterance, batch),
        )
        for batch, label, utterance in zip(positions, labels, utterances, strict=True)
    ]


def _blocks(key, n, num_anchors):
    """Yield blocks of anchor indices of equal length, with masks that exclude padding."""
    anchors = np.arange(n)
    if n > num_anchors:
        anchors = np.asarray(jax.random.choice(key, n, (num_anchors,), replace=False))
    size = max(1, min(len(anchors), 2**21 // n))
    for start in range(0, len(anchors), size):
        rows = anchors[start : start + size]
        yield np.pad(rows, (0, size - len(rows))), np.arange(size) < len(rows)


def _flat(positions: AnyPosition) -> AnyPosition:
    columns = np.broadcast_arrays(*positions)
    flat = positions._make(column.ravel().astype(np.int32) for column in columns)
    where = np.stack([flat.sequence, flat.time, flat.lane])
    if not flat.time.size or len(np.unique(where, axis=1).T) < flat.time.size:
        problem = "positions are empty or contain two latents at one position"
        raise UserError(f"{problem}: pass the positions of several batches as a list")
    return flat


def _like(name, values, positions):
    shape = np.broadcast_shapes(*(np.shape(p) for p in positions))
    try:
        return np.broadcast_to(np.asarray(values), shape).reshape(-1).astype(np.int32)
    except ValueError:
        problem = f"{name} do not broadcast to the positions (got shape {np.shape(values)})"
        raise UserError(f"{problem}: pass shape {shape}") from None


def _make_tally(rule, sampler):
    """Return a jitted function that sums statistics over a block of anchors."""

    @jax.jit
    def tally(flat, label, utterance, rows, real, k, scores, rng):
        anchor = jax.tree.map(lambda p: p[rows][:, None], flat)
        candidate = jax.tree.map(lambda p: p[None], flat)
        positive = is_positive(anchor, candidate, k)  # (m, n)
        target = jnp.argmax(positive, -1)
        real = real & positive.any(-1)
        allowed = jnp.broadcast_to(rule(anchor, candidate, k), positive.shape) & real[:, None]
        weights, used = _use(sampler, rng, scores, target, allowed)
        weights = jnp.where(real[:, None], jnp.maximum(weights, 0.0), 0.0)
        used = jnp.where(real, used, 0)

        own, num_allowed = (allowed & positive).sum(-1), allowed.sum(-1)
        missed = used * jnp.log1p(-own / jnp.maximum(num_allowed, 1))
        known = (label[None] >= 0) & (label[target] >= 0)[:, None]
        same_label = known & (label[None] == label[target][:, None])
        same_utterance = utterance[None] == utterance[rows][:, None]
        sums = weights.sum(-1)
        weight = weights / jnp.maximum(sums, 1e-30)[:, None]
        squares = jnp.square(weight).sum(-1)
        return {
            "anchors": real.sum(),
            "without": (real & (used == 0)).sum(),
            "used": used.sum(),
            "fewest": jnp.where(used > 0, used, jnp.iinfo(jnp.int32).max).min(),
            "log_n": jnp.log1p(used.astype(jnp.float32)).sum(),  # 0 for unused anchors
            "hits": (real & (jnp.where(positive, weights, 0.0) > 0).any(-1)).sum(),
            "expected_hits": jnp.where(used > 0, -jnp.expm1(missed), 0.0).sum(),
            "weight": sums.sum(),
            "known": jnp.where(known, weights, 0.0).sum(),
            "same_label": jnp.where(same_label, weights, 0.0).sum(),
            "labelled": (real & (label[target] >= 0)).sum(),
            "with_same": (real & (jnp.where(same_label, weights, 0.0) > 0).any(-1)).sum(),
            "known_pairs": (known & real[:, None]).sum(dtype=jnp.float32),
            "same_pairs": (same_label & real[:, None]).sum(dtype=jnp.float32),
            "same_utterance": jnp.where(same_utterance, weights, 0.0).sum(),
            "effective": jnp.where(squares > 0, 1 / squares, 0).sum(),
            "entropy": jax.scipy.special.entr(weight).sum(),
            "repeats": jnp.maximum(used - (weights > 0).sum(-1), 0).sum(),
        }

    return tally


def _use(sampler, rng, scores, target, allowed):
    """Return the weights of candidates (m, n) and the number of negatives per anchor (m,)."""
    if sampler is None:
        return allowed.astype(jnp.float32), allowed.sum(-1)
    positive = jnp.take_along_axis(scores, target[:, None], -1)[:, 0]

    def total(scores):
        chosen, where = sampler(rng, positive, scores, allowed)
        return jnp.where(where, chosen, 0.0).sum(), where.sum(-1)

    return jax.grad(total, has_aux=True)(scores)


def _rule_rows(sums, chosen, labelled):
    anchors, weight = sums["anchors"], sums["weight"]
    counted = anchors - sums["without"]  # anchors in the loss
    predicted = {"accidental_hits_predicted": sums["expected_hits"] / anchors} if chosen else {}
    false = {
        "false_negatives": _fraction(sums["same_label"], sums["known"]),
        "false_negatives_predicted": _fraction(sums["same_pairs"], sums["known_pairs"]),
        "anchors_with_false_negatives": _fraction(sums["with_same"], sums["labelled"]),
    }
    return make_rows(
        anchors=int(anchors),
        anchors_without_negative=sums["without"] / anchors,
        negatives_min=int(sums["fewest"]) if counted else None,
        negatives_mean=_fraction(sums["used"], counted),
        log_n=_fraction(sums["log_n"], counted),
        accidental_hits=sums["hits"] / anchors,
        **predicted,
        **(false if labelled else {}),
        same_utterance=_fraction(sums["same_utterance"], weight),
        effective_negatives=_fraction(sums["effective"], counted),
        weight_entropy=_fraction(sums["entropy"], counted),
        duplicates=_fraction(sums["repeats"], sums["used"]),
    )


def _fraction(part, whole):
    return part / whole if whole else None


def audit_queue(queue: Queue, step: int) -> Audit:
    """Audit a queue's fill level and the age of its latents at a training step.

    >>> from cpc.negatives.queue import make_queue
    >>> [row.value for row in audit_queue(make_queue(4, 2), 10)]
    [4, 0.0, None, None, None]
    """
    age = np.asarray(ages(queue, step))
    size, age = age.size, age[age >= 0]
    return make_rows(
        queue_size=size,
        queue_filled=age.size / size,
        age_min=float(age.min()) if age.size else None,
        age_mean=float(age.mean()) if age.size else None,
        age_max=float(age.max()) if age.size else None,
    )


def audit_table(q: Num[ArrayLike, "..."]) -> Audit:
    """Audit how concentrated a noise distribution with class weights q (v,) is.

    >>> rows = audit_table(np.ones(8))
    >>> [(row.name, round(row.value, 4)) for row in rows if "classes" in row.name]
    [('classes', 8), ('effective_classes', 8.0)]
    """
    q = probabilities(q)
    entropy = float(entr(q).sum())
    return make_rows(
        classes=int(np.count_nonzero(q)),
        entropy=entropy,
        effective_classes=float(np.exp(entropy)),
        most_probable=float(q.max()),
    )


def audit_sampler(
    draw: Callable[[Array], Any],
    q: Num[ArrayLike, "..."],
    targets: Int[ArrayLike, " m"],
    *,
    labels: Int[ArrayLike, " v"] | None = None,
    rng: Array | None = None,
    num_rounds: int = 50,
) -> Audit:
    """Audit a sampler's draws of class ids against predictions from its class probabilities.

    Predictions assume independent draws. Each draw has weight 1 / q, as in the log-Q correction at
    equal scores.

    Args:
      draw: draw(rng) -> integer ids, either (n,) shared by all anchors, or (m, n).
      q: probability of each class in one draw, or weights proportional to it, (v,).
      targets: class ids of the positives.
      labels: label of each class. False negatives are other classes with the target's label.
      num_rounds: number of calls of `draw`.

    >>> uniform = lambda rng: jax.random.randint(rng, (3, 5), 0, 10)
    >>> rows = audit_sampler(uniform, np.ones(10), np.arange(3))
    >>> round({row.name: row.value for row in rows}["accidental_hits_predicted"], 5)  # 1 - .9^5
    0.40951
    """
    check_number("num_rounds", num_rounds, least=1)
    q, targets = probabilities(q), np.asarray(targets)
    _check_ids("targets", targets, q)
    counts, rounds = np.zeros(len(q), np.int64), []
    for key in jax.random.split(jax.random.key(0) if rng is None else rng, num_rounds):
        ids = np.asarray(draw(key))
        _check_ids("drawn ids", ids, q)
        counts += np.bincount(ids.ravel(), minlength=len(q))
        rounds.append(_one_round(ids, q, targets, labels))
    num, hits, false, effective, entropy, repeats = map(float, np.mean(rounds, 0))
    false_negatives = {}
    if labels is not None:
        _, label = np.unique(labels, return_inverse=True)
        others = np.bincount(label, q)[label] - q  # the label's probability without the target
        false_negatives = {
            "false_negatives": false,
            "false_negatives_predicted": float(others[targets].mean()),
        }
    possible = q[q > 0]
    return audit_table(q) + make_rows(
        negatives_mean=num,
        accidental_hits=hits,
        accidental_hits_predicted=float(np.mean(hit_rate(q[targets], int(num)))),
        **false_negatives,
        effective_negatives=effective,
        effective_negatives_predicted=float(num * len(possible) ** 2 / (1 / possible).sum()),
        weight_entropy=entropy,
        duplicates=repeats,
        duplicates_predicted=float(1 - np.sum(hit_rate(q, int(num))) / num),
        impossible_draws=int(counts[q == 0].sum()),
        chi_square=_chi_square(counts, q),
    )


def _one_round(ids, q, targets, labels):
    """Return means over anchors, in the order in which `audit_sampler` unpacks them."""
    hit = np.asarray(accidental_hits(targets, ids))
    same = np.zeros(1, bool)
    if labels is not None:
        labels = np.asarray(labels)
        same = np.asarray(accidental_hits(labels[targets], labels[ids])) & ~hit
    ids = np.atleast_2d(ids)
    num = ids.shape[1]
    weights = np.where(q[ids] > 0, 1 / np.where(q[ids] > 0, q[ids], 1.0), 0.0)
    weight = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    squares = np.square(weight).sum(-1)
    effective = np.where(squares > 0, 1 / np.where(squares > 0, squares, 1.0), 0.0)
    distinct = 1 + (np.diff(np.sort(ids, -1)) > 0).sum(-1)
    means = (hit.any(-1), same, effective, entr(weight).sum(-1), 1 - distinct / num)
    return num, *(x.mean() for x in means)


def _check_ids(name, ids, q):
    if not ids.size or not np.issubdtype(ids.dtype, np.integer):
        raise UserError(f"{name} have shape {ids.shape} and type {ids.dtype}: pass integers")
    if ids.min() < 0 or ids.max() >= len(q):
        problem = f"{name} do not fit {len(q)} classes (got {ids.min()} to {ids.max()})"
        raise UserError(f"{problem}: pass ids 0 to {len(q) - 1}")


def _chi_square(counts, q):
    """Return chi-square per degree of freedom, with rare classes pooled to 5 expected draws."""
    order = np.argsort(q)
    expected, observed = np.cumsum(counts.sum() * q[order]), np.cumsum(counts[order])
    ends, reached = [], 0.0
    while (end := int(np.searchsorted(expected, reached + 5))) < len(q):
        ends.append(end)
        reached = expected[end]
    if len(ends) < 2:
        return None
    ends[-1] = len(q) - 1  # the remaining classes join the last bin
    bins, want = np.diff(observed[ends], prepend=0), np.diff(expected[ends], prepend=0)
    return float(((bins - want) ** 2 / want).sum() / (len(ends) - 1))
