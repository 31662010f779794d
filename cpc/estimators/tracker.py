"""Estimates of mutual information during training, and a lower bound between sequences."""

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
    """Return sums for log b - L over b sequences, each with one candidate at the positive's time.

    I(z_(t+k); c_t) >= log b - E [ log sum_j e^s(c_t of i, z_(t+k) of j) - s(i, i) ]

    s is the score, the dot product of a prediction and a latent. If sequences are independent, the
    candidates are independent draws from the marginal, so this is a lower bound for any scores
    (van den Oord et al. 2018, section 2.3). L equals the CPC loss under the rule
    `one_per_sequence`. A single sequence has no negatives, so all sums are 0.

    Args:
      offsets: offsets of the predictions. Defaults to 1 to k.
      where: mask of the latents. Masked latents are neither anchors nor candidates.
      sound: the `window` and the `end` of a `SoundPosition`. A sequence that shares sound with an
        earlier sequence is excluded, because copies raise log b but are as easy to classify.
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
    """Return a mask of the sequences that share no sound with an earlier sequence.

    The sound of a sequence extends from its `window` to the last `end` of its unmasked latents.
    Sample indices are modulo 2^32, so only differences are compared.
    """
    b = len(mask)
    start = jnp.broadcast_to(window, mask.shape).reshape(b, -1)[:, 0]
    length = jnp.where(mask, end - window, 0).reshape(b, -1).max(-1)
    ahead = start[:, None] - start
    overlaps = (ahead > -length[:, None]) & (ahead < length) & (length > 0)
    return ~jnp.tril(overlaps, -1).any(-1)


class GroupSplit(NamedTuple):
    """The bound between sequences, split into information within and between groups.

    `within` and `between` only count anchors with a negative from their own group.
    """

    whole: OffsetSums
    """Sums over all anchors, as in `bound_over_sequences`."""
    within: OffsetSums
    """Sums with candidates from the anchor's group only."""
    between: OffsetSums
    """Sums with all candidates minus `within`, so that log N / N_g replaces log N."""


def split_by_group(
    z: Float[Array, "b t *lanes d"],
    predictions: Float[Array, "b t *lanes k d"],
    group: Int[Array, " b"],
    offsets: tuple[int, ...] | None = None,
    *,
    where: Bool[Array, "b t *lanes"] | None = None,
    sound: tuple[Int[Array, "#b #t *lanes"], Int[Array, "#b #t *lanes"]] | None = None,
) -> GroupSplit:
    """Split the bound between sequences by each sequence's group g, such as its speaker.

    If c determines g, the chain rule is I(z; c) = I(z; g) + I(z; c | g). Let N_g candidates be
    from the anchor's own group, and thus draws from p(z | g). Then log N_g - L is a lower bound on
    the second term. Its difference from log N - L of the same anchors estimates the first term.
    This difference of two bounds is not a bound.

    Args:
      group: each sequence's group. A group below 0 is unknown, and no other sequence shares it.
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
    # The results are the scores of the anchors (a, b) and the weights of their negatives (a, b, n).
    positive, own = jnp.diagonal(scores, axis1=1, axis2=2), jnp.eye(scores.shape[-1], dtype=bool)
    total = jax.nn.logsumexp(jnp.where(where | own, scores, -jnp.inf), -1)
    found = jax.vmap(anchor_scores)(total - positive, positive, scores, where)
    return found, jnp.exp(jnp.where(where, scores - total[..., None], -jnp.inf))


class Track(NamedTuple):
    """Estimates in nats, accuracies and states, with one entry per offset."""

    n: np.ndarray
    """Mean number of candidates N_i, including the positive."""
    log_n: np.ndarray
    """Mean of log N_i, which is the ceiling of the estimate."""
    loss: np.ndarray
    value: np.ndarray
    """Mean of log N_i - L_i."""
    low: np.ndarray
    high: np.ndarray
    """Upper end of the 95 % confidence interval over sequences; `low` is the lower end."""
    chance: np.ndarray
    """Expected acc_top1 of random guesses, the mean of 1 / N_i. Exceeds 1 / n if N_i varies."""
    acc_top1: np.ndarray
    acc_pairwise: np.ndarray
    state: tuple[str, ...]
    """One of diverged, chance, fine, warn and saturated, or "" if the loss has no log N."""


@dataclasses.dataclass(frozen=True)
class Tracker:
    """A function of sums over anchors that returns log N - L with a confidence interval.

    The value is a lower bound on mutual information if the negatives are independent draws from
    the marginal (`is_bound` of the negative rule). Otherwise it is an estimate that may be too high
    or too low. Values are NaN and states are empty if the loss is not log N at chance and 0 at best
    (`has_log_n` of `cpc.losses.describe`).

    The interval treats the B sequences as independent draws. Each sequence contributes to the mean
    R of log N - L through its own anchors and as a negative of other sequences' anchors. Let u_b be
    the sum of log N - L over the anchors of sequence b minus the weight that the sequence receives
    as a negative (`cpc.losses.blocks.received_weights`), a_b the number of its anchors, and
    U = sum u_b / sum a_b. The standard error is

        sqrt(B / (B - 1) sum (u_b - U a_b)^2) / sum a_b,

    which is the first-order projection of a statistic whose terms share draws (Hoeffding 1948;
    Hajek 1968). The interval uses Student's t-distribution with B - 1 degrees of freedom. In
    simulations of an autoregressive process with the optimal critic it covers the mean in 94 to
    97 % of draws, or 99 % for hard-weighted losses, whose negatives compete, so that the interval
    is too wide (`python -m tests.estimators.coverage`).

    The states are calibrated on correlated Gaussians with a perfect critic and N of at least 64:

        diverged   the loss is more than twice log N
        chance     the interval's lower end is at most 0, or the value is below 1 % of log N
        fine       R / log N is at most 0.6, and the value is at most about 10 % too low
        warn       R / log N is at most 0.9, and the value is up to 38 % too low
        saturated  R / log N is above 0.9

    For N = 16, the value is already 25 % too low at R / log N = 0.6.
    """

    is_bound: bool
    rule: str = ""
    has_log_n: bool = True

    def __post_init__(self) -> None:
        """Validate the types, because a rule passed instead of its `is_bound` would be truthy."""
        for name in ("is_bound", "has_log_n"):
            fix = "pass a rule's is_bound" if name == "is_bound" else "pass True or False"
            check_type(name, getattr(self, name), bool, fix)

    @property
    def word(self) -> str:
        """The word for the value in messages, either bound or estimate."""
        return "bound" if self.is_bound else "estimate"

    def __call__(self, sums: OffsetSums) -> Track:
        """Return estimates, intervals and states from sums over any number of steps."""
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
        """Return a warning if the value is worse than chance, at chance or at its ceiling.

        `labels` name the track's offsets, such as "2" or "2 down".
        """
        named = list(zip(labels, track.state, strict=True))
        if "diverged" in track.state:
            loss, ceiling = np.nanmax(track.loss), np.nanmean(track.log_n)
            where = ", ".join(label for label, state in named if state == "diverged")
            return (
                f"the training diverges: at offset {where} the loss is up to {loss:.3g} nats, but "
                f"guessing gives log N = {ceiling:.2f}; if this persists, lower optim.learning_rate"
            )
        if set(track.state) == {"chance"}:
            if np.isnan(track.n).all():
                return f"the {self.word} has no anchor: the rule allows no negatives"
            if np.isnan(track.value).all():
                return f"the {self.word} is not a number: the loss is NaN at every offset"
            value, ceiling = np.nanmean(track.value), np.nanmean(track.log_n)
            return (
                f"the {self.word} is at chance: log N - L is {value:.3f} of at most {ceiling:.2f} "
                "nats, so the model does not predict anything yet"
            )
        full = [label for label, state in named if state == "saturated"]
        if full:
            return (
                f"the {self.word} is at its ceiling log N at offset {', '.join(full)}: the "
                "information may be far larger; use more negatives to measure it"
            )
        return None


def saturation(value: float, log_n: float, low: float) -> str:
    """Return a value's `Tracker` state, given its ceiling `log_n` and its interval's lower end.

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
