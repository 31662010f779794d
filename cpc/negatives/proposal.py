"""Proposals: noise that is learned, or follows the model, drawn and paid for with its own log q.

A proposal needs q > 0 wherever the data have p > 0. The losses of `cpc.losses` that take log_noise
or log_q correct for it exactly.
"""

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.negatives.samplers import (
    Chosen,
    Mask,
    Positives,
    Scores,
    check_enough,
    check_num,
    draw_by_units,
)
from cpc.types import NegativeSampler, UserError

#: What the gradient sees of the proposal.
GradientMode: TypeAlias = Literal["through", "stopped", "fixed"]


class Proposal(NamedTuple):
    """Draws from q, and log q of all classes; one distribution (v,) or one for each anchor."""

    ids: Int[Array, "*m c"]
    log_q: Float[Array, "*m c"]
    """Of the drawn; -inf, as all of the row, where nothing could be drawn."""
    table: Float[Array, "*m v"]

    def log_q_of(self, ids: Int[Array, "..."]) -> Float[Array, "..."]:
        """Of any classes, such as the positives (m,); the mode holds for them too.

        >>> propose(jax.random.key(0), jnp.zeros(4), 2, "fixed").log_q_of(jnp.array([3, 1, 0]))
        Array([-1.3862944, -1.3862944, -1.3862944], dtype=float32)
        """
        if self.table.ndim == 1:
            return self.table[ids]
        columns = ids if ids.ndim == 2 else ids[:, None]
        return jnp.take_along_axis(self.table, columns, -1).reshape(ids.shape)


def propose(
    rng: Array,
    logits: Float[Array, "*m v"],
    num: int,
    mode: GradientMode,
    where: Bool[Array, "*m v"] | None = None,
) -> Proposal:
    """Draw classes with replacement from q = softmax(logits), with log q.

    What becomes of noise-contrastive estimation with noise q = p_theta, the model itself:

        fixed    q does not depend on what is trained, or it is an error: consistent
        stopped  q follows the model, and the gradient does not see it: k / (k + 1) times the
                 likelihood's gradient, consistent (self-contrastive estimation, Goodfellow 2015)
        through  the gradient flows into log q too: the objective is constant, nothing is learned

    A proposal with parameters of its own learns through its own loss, or, with "through", from
    this one. The draws themselves have no gradient.

    Probabilities are drawn in steps of 2^-30: what is rarer than half a step is never drawn.

    Args:
      rng: one key for all draws.
      logits: (v,) for all anchors, or (m, v); unnormalised log q.
      num: draws, (num,) or (m, num).
      mode: "through", "stopped" or "fixed".
      where: classes that may be drawn. The others may be NaN, have log q = -inf, and no gradient.

    >>> proposal = propose(jax.random.key(0), jnp.array([-jnp.inf, 0.0]), 3, "stopped")
    >>> proposal.ids, proposal.log_q
    (Array([1, 1, 1], dtype=int32), Array([0., 0., 0.], dtype=float32))
    """
    check_num("propose", num)
    if mode not in ("through", "stopped", "fixed"):
        raise UserError(f'the proposal\'s mode is {mode!r}: choose "through", "stopped" or "fixed"')
    if logits.shape[-1] == 0:
        raise UserError("the proposal has no classes: give logits of one or more")
    if mode == "fixed":
        logits = _fixed(logits)
    elif mode == "stopped":
        logits = jax.lax.stop_gradient(logits)
    if where is not None:
        logits = jnp.where(where, logits, -jnp.inf)
    table = _log_softmax(logits.astype(jnp.float32))
    rows = jnp.atleast_2d(jax.lax.stop_gradient(table))
    units = jnp.floor(jnp.exp(rows) * 2.0**30 + 0.5).astype(jnp.int32)
    ids, _ = draw_by_units(rng, units, num)
    ids = ids.reshape(*logits.shape[:-1], num)
    return Proposal(ids, jnp.take_along_axis(table, ids, -1), table)


def _log_softmax(logits):
    """-inf throughout, not NaN, where all logits are -inf."""
    some = (logits > -jnp.inf).any(-1, keepdims=True)
    return jnp.where(some, jax.nn.log_softmax(jnp.where(some, logits, 0.0)), -jnp.inf)


@jax.custom_jvp
def _fixed(logits):
    return logits


@_fixed.defjvp
def _differentiated(primals, tangents):
    raise UserError(
        'the logits of a "fixed" proposal depend on what is being trained: hold them apart from '
        'the parameters, or choose "stopped"'
    )


def proposed(num: int, mode: GradientMode, sharpness: float | int = 1.0) -> NegativeSampler:
    """Return a sampler of `num` negatives drawn by their scores, corrected for it.

    q_j proportional to exp(sharpness s_j) over the r allowed negatives; what comes back is
    s_j - log(r q_j), so that the sum of exponentials has the mean of `num` uniform draws, with a
    variance that falls as q nears exp(s). With sharpness 1 every draw equals log mean_j exp(s_j):
    InfoNCE over all allowed negatives, at N = num + 1. With sharpness 0 it is uniform_draws.

    The positive, which is not drawn, is not corrected: a self-normalised importance estimate, whose
    bias falls with num. The negatives depend on the anchor: log N - L is an estimate. N counts
    draws, repeats included, and accuracies are of corrected scores: with sharpness 1, of whether
    the positive is above log mean_j exp(s_j), and not of whether it beats negatives.

    >>> scores, where = jnp.log(jnp.array([[1.0, 5.0]])), jnp.ones((1, 2), bool)
    >>> scores, _ = proposed(2, "stopped")(jax.random.key(0), jnp.zeros(1), scores, where)
    >>> bool(jnp.allclose(scores, jnp.log(3.0)))
    True
    """
    check_num("proposed", num)
    if mode == "fixed":
        raise UserError('a proposal by scores cannot be "fixed": choose "through" or "stopped"')

    def choose(rng: Array, positive: Positives, negatives: Scores, where: Mask) -> Chosen:
        check_enough("proposed", 1, negatives)
        scores = jnp.where(where, negatives, 0.0).astype(jnp.float32)
        ids, log_q, _ = propose(rng, sharpness * scores, num, mode, where)
        num_allowed = where.sum(-1, keepdims=True, dtype=jnp.float32)
        drawn = jnp.broadcast_to(num_allowed > 0, ids.shape)
        correction = jnp.where(drawn, log_q, 0.0) + jnp.log(jnp.maximum(num_allowed, 1))
        return jnp.take_along_axis(scores, ids, -1) - correction, drawn

    return choose
