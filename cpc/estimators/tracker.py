"""The tracker of mutual information in a run, and the strict bound across sequences."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cpc.losses import OffsetSums, cpc_loss
from cpc.losses.blocks import anchor_scores, received_weights
from cpc.losses.cpc_loss import anchor_numbers, sum_sequences
from cpc.types import CPCOutputs, Position, Rule, check_type

_STRICT = Rule("strict", lambda anchor, other, _: anchor.sequence != other.sequence, aligned=True)


def bound_over_sequences(
    z: Float[Array, "b t *lanes d"],
    predictions: Float[Array, "b t *lanes k d"],
    offsets: tuple[int, ...] | None = None,
    *,
    where: Bool[Array, "b t *lanes"] | None = None,
    sound: tuple[Int[Array, "#b #t *lanes"], Int[Array, "#b #t *lanes"]] | None = None,
) -> OffsetSums:
    """Return sums for log b - L, with one candidate per sequence, aligned with the positive.

    I(z_(t+k); c_t) >= log b - E [ log sum_j e^s(c_t of i, z_(t+k) of j) - s(i, i) ]

    Independent sequences make the candidates independent draws from the marginal, so that this is a
    lower bound for any scores (van den Oord et al. 2018, section 2.3). It equals the CPC loss under
    the rule `one_per_sequence`, at b / t of the work. A single sequence lacks negatives: all its
    sums are 0.

    Args:
      offsets: offsets of the predictions; 1 to k by default.
      where: mask of latents that exist; other latents are not candidates.
      sound: the `window` and the `end` of a `SoundPosition`. A sequence whose sound overlaps that
        of an earlier one is left out, because copies raise log b but are as easy to distinguish.
    """
    b, length, *lanes, _ = z.shape
    if b == 1:
        zero = jnp.zeros(predictions.shape[-2], jnp.float32)
        return OffsetSums(*(zero for _ in OffsetSums._fields))
    flat = Position.grid(b, length, math.prod(lanes))
    positions = jax.tree.map(lambda p: p.reshape(z.shape[:-1]), flat)
    if sound is not None:
        mask = jnp.ones(z.shape[:-1], bool) if where is None else where
        where = mask & is_new(*sound, mask).reshape(b, *(1,) * (len(lanes) + 1))
    dtype = jnp.result_type(z, predictions)
    outputs = CPCOutputs(z.astype(dtype), z, predictions.astype(dtype))
    return cpc_loss(outputs, positions, _STRICT, where=where, offsets=offsets)[1]


def is_new(
    window: Int[Array, "#b #t *lanes"],
    end: Int[Array, "#b #t *lanes"],
    mask: Bool[Array, "b t *lanes"],
) -> Bool[Array, " b"]:
    """Return a mask of the sequences that share no sound with an earlier one.

    The sound of a sequence extends from its `window` to the last `end` of its existing latents.
    Both count modulo 2^32, so only differences are compared.
    """
    b = len(mask)
    start = jnp.broadcast_to(window, mask.shape).reshape(b, -1)[:, 0]
    length = jnp.where(mask, end - window, 0).reshape(b, -1).max(-1)
    ahead = start[:, None] - start
    overlaps = (ahead > -length[:, None]) & (ahead < length) & (length > 0)
    return ~jnp.tril(overlaps, -1).any(-1)


class GroupSplit(NamedTuple):
    """The strict bound, and its parts for the anchors with another candidate of their group."""

    whole: OffsetSums
    """Sums of all anchors, as `bound_over_sequences`."""
    within: OffsetSums
    """Sums with candidates of the anchor's group alone."""
    between: OffsetSums
    """Sums with all candidates less the sums in `within`: log N / N_g replaces log N."""


def split_by_group(
    z: Float[Array, "b t *lanes d"],
    predictions: Float[Array, "b t *lanes k d"],
    group: Int[Array, " b"],
    offsets: tuple[int, ...] | None = None,
    *,
    where: Bool[Array, "b t *lanes"] | None = None,
    sound: tuple[Int[Array, "#b #t *lanes"], Int[Array, "#b #t *lanes"]] | None = None,
) -> GroupSplit:
    """Split the strict bound by the group g of each sequence, such as its speaker.

    The chain rule is I(z; c) = I(z; g) + I(z; c | g), if c determines g. With N_g candidates of
    the anchor's own group, which are draws from p(z | g), log N_g - L is a lower bound on the
    second part. The difference to log N - L of the same anchors estimates the first part: as a
    difference of two bounds it is not a bound.

    Args:
      group: the group of each sequence; below 0 it is unknown and shared with no other sequence.
      offsets, where, sound: as for `bound_over_sequences`.
    """
    b, length, *lanes, width = z.shape
    stride, mask = math.prod(lanes), jnp.ones(z.shape[:-1], bool) if where is None else where
    if sound is not None:
        mask &= is_new(*sound, mask).reshape(b, *(1,) * (len(lanes) + 1))
    mask = mask.reshape(b, -1)
    keys = jnp.where(mask[..., None], z.reshape(b, -1, width), 0)
    queries = jnp.moveaxis(predictions, -2, 0).reshape(-1, b, length * stride, width)
    queries = jnp.where(mask[..., None], queries, 0)
    ks = jnp.asarray(offsets or range(1, len(queries) + 1)) * stride
    alike = (group[:, None] == group) & (group >= 0)

    def at_offset(inputs):
        k, query = inputs
        place = jnp.arange(length * stride)
        there = jnp.roll(mask, -k, 1) & (place + k < len(place))
        scores = jnp.einsum(
            "bad,nad->abn", query, jnp.roll(keys, -k, 1), preferred_element_type=jnp.float32
        )
        anchors = (mask & there).T  # (a, b)
        candidates = anchors[..., None] & there.T[:, None] & ~jnp.eye(b, dtype=bool)
        whole, weights = _contrast(scores, candidates)
        within, of_group = _contrast(scores, candidates & alike)
        same_anchors = weights * within.counted[..., None]
        received = (weights, of_group, same_anchors - of_group)
        received = [received_weights(each, jnp.arange(b)).sum(0) for each in received]
        return jax.tree.map(jnp.transpose, (whole, within)), received

    (whole, within), received = jax.lax.map(at_offset, (ks, queries))
    counted, numbers, own = within.counted, anchor_numbers(whole), anchor_numbers(within)
    differences = [x * counted - y for x, y in zip(numbers, own, strict=True)]
    return GroupSplit(
        sum_sequences(whole.counted, *numbers, received=received[0]),
        sum_sequences(counted, *own, received=received[1]),
        sum_sequences(counted, *differences, received=received[2]),
    )


def _contrast(scores, where):
    # Scores of the anchors are (a, b), weights of their negatives (a, b, n).
    positive, own = jnp.diagonal(scores, axis1=1, axis2=2), jnp.eye(scores.shape[-1], dtype=bool)
    total = jax.nn.logsumexp(jnp.where(where | own, scores, -jnp.inf), -1)
    found = jax.vmap(anchor_scores)(total - positive, positive, scores, where)
    return found, jnp.exp(jnp.where(where, scores - total[..., None], -jnp.inf))


class Track(NamedTuple):
    """Arrays (k,), one entry per offset; information in nats."""

    n: np.ndarray
    """Mean number of candidates, the positive included."""
    log_n: np.ndarray
    """The ceiling: mean of log N_i."""
    loss: np.ndarray
    value: np.ndarray
    """Mean of log N_i - L_i."""
    low: np.ndarray
    high: np.ndarray
    """Ends of the 95 % interval over sequences."""
    chance: np.ndarray
    """Chance of acc_top1, mean of 1 / N_i: more than 1 / n if anchors differ in N_i."""
    acc_top1: np.ndarray
    acc_pairwise: np.ndarray
    state: tuple[str, ...]
    """diverged, chance, fine, warn or saturated; "" for losses without a log N."""


@dataclasses.dataclass(frozen=True)
class Tracker:
    """A function of sums over anchors: the estimate log N - L with interval, ceiling and state.

    The value is a lower bound on mutual information only if negatives are independent draws from
    the marginal (`is_bound`, of the negative rule); otherwise it is an estimate, on either side. A
    loss that is not log N at chance and 0 at best (`has_log_n`, of `cpc.losses.describe`) has NaN
    values and empty states.

    The interval treats the sequences of a batch as independent draws. Each of them contributes to
    the mean R of log N - L by its own anchors and as a negative of the other sequences' anchors.
    With u_b the sum of log N - L over the anchors of sequence b, less the weight that it receives
    as a negative (`cpc.losses.blocks.received_weights`), a_b the number of its anchors and
    U = sum u_b / sum a_b, the standard error is

        sqrt(B / (B - 1) sum (u_b - U a_b)^2) / sum a_b,

    which is the first-order projection of a statistic whose terms share draws (Hoeffding 1948;
    Hajek 1968); the ends are Student's with B - 1 degrees of freedom. In simulations of an
    autoregressive process with the optimal critic, for 8 to 64 sequences per batch and 1 to 8
    batches, the interval contains the expectation of R in 0.943 to 0.969 of 1,500 draws; without
    the negatives, in 0.853 to 0.940. For hard-weighted losses, whose negatives compete, it is too
    wide: 0.99 (`python -m tests.estimators.coverage`).

    States by R / log N, calibrated on correlated Gaussians with a perfect critic, for N of 64 and
    more: up to 0.6 the estimate is at most about 10 % low (fine), to 0.9 up to 38 % (warn), above
    that more (saturated); with N = 16 it is 25 % low at 0.6 already. Chance: the interval reaches
    down to 0, or the value is under 1 % of log N. Diverged: the loss is more than twice log N.
    """

    is_bound: bool
    rule: str = ""
    has_log_n: bool = True

    def __post_init__(self) -> None:
        """Validate the types, because a rule in place of its `is_bound` would count as true."""
        for name in ("is_bound", "has_log_n"):
            fix = "pass a rule's is_bound" if name == "is_bound" else "pass True or False"
            check_type(name, getattr(self, name), bool, fix)

    @property
    def word(self) -> str:
        """The name of the value: bound or estimate."""
        return "bound" if self.is_bound else "estimate"

    def __call__(self, sums: OffsetSums) -> Track:
        """Return the track of sums, added up over any number of steps."""
        from scipy.special import stdtrit

        s: Any = OffsetSums._make(np.asarray(leaf, np.float64) for leaf in sums)
        anchors = np.where(s.anchors > 0, s.anchors, np.nan)
        loss, log_n = s.loss / anchors, s.log_n / anchors
        value = log_n - loss if self.has_log_n else np.full_like(loss, np.nan)
        mean = s.projection / anchors
        spread = s.value_squared - 2 * mean * s.value_anchors + mean**2 * s.anchors_squared
        blocks = np.where(s.sequences > 1, s.sequences, np.nan)
        error = np.sqrt(np.maximum(spread, 0.0) * blocks / (blocks - 1)) / anchors
        half = stdtrit(blocks - 1, 0.975) * error
        low, high = value - half, value + half
        return Track(
            n=s.n / anchors,
            log_n=log_n,
            loss=loss,
            value=value,
            low=low,
            high=high,
            chance=s.chance / anchors,
            acc_top1=s.top1 / anchors,
            acc_pairwise=s.pairwise / anchors,
            state=tuple(
                saturation(*row) if self.has_log_n else ""
                for row in zip(value, log_n, low, strict=True)
            ),
        )

    def warning(self, track: Track, labels: Sequence[str]) -> str | None:
        """Return a sentence if the value is worse than chance, at chance or at its ceiling.

        `labels` are the offsets of the track's entries in words, such as 2 or 2 down.
        """
        named = list(zip(labels, track.state, strict=True))
        if "diverged" in track.state:
            loss, ceiling = np.nanmax(track.loss), np.nanmean(track.log_n)
            where = ", ".join(label for label, state in named if state == "diverged")
            return (
                f"the training diverges: at offset {where} the loss is up to {loss:.3g} nats, that "
                f"of guessing log N = {ceiling:.2f}; if it stays there, lower optim.learning_rate"
            )
        if set(track.state) == {"chance"}:
            if np.isnan(track.n).all():
                return f"the {self.word} has no anchor: the rule leaves none a negative"
            if np.isnan(track.value).all():
                return f"the {self.word} is not a number: the loss is NaN at each offset"
            value, ceiling = np.nanmean(track.value), np.nanmean(track.log_n)
            return (
                f"the {self.word} sits at chance: log N - L is {value:.3f} nats of {ceiling:.2f}, "
                "nothing is predicted yet"
            )
        full = [label for label, state in named if state == "saturated"]
        if full:
            return (
                f"the {self.word} is at its ceiling log N at offset {', '.join(full)}: the "
                "information may be far larger; use more negatives to see it"
            )
        return None


def saturation(value: float, log_n: float, low: float) -> str:
    """Return the state of a value under its ceiling, as defined by `Tracker`.

    >>> saturation(1.0, 4.0, 0.9), saturation(3.0, 4.0, 2.9), saturation(0.1, 4.0, -0.1)
    ('fine', 'warn', 'chance')
    """
    if value < -log_n:
        return "diverged"
    if not np.isfinite(value) or value < 0.01 * log_n or low <= 0:
        return "chance"
    if value <= 0.6 * log_n:
        return "fine"
    return "warn" if value <= 0.9 * log_n else "saturated"
