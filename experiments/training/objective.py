"""The loss that a plan describes, with its temperature and memory, as pure functions.

Their own parameters (a learned temperature or bias) are trained with the model's; what they carry
from step to step (a held temperature, a queue, a momentum encoder) lives in the training state.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc import negatives
from cpc.losses import MemoryBank, OffsetSums, acpc_loss, cpc_loss
from cpc.losses.blocks import LossReducer
from cpc.losses.cpc_loss import add_memory
from cpc.losses.tiles import Latents
from cpc.parallel import make_reducer
from cpc.train import BATCH_AXIS
from cpc.types import (
    AnyPosition,
    CPCOutputs,
    NegativeSampler,
    PyTree,
    Rule,
    SoundPosition,
    is_positive,
)
from experiments.training.plan import Plan

#: Anchors of each offset whose negatives' weights hold the temperature.
ANCHORS_WATCHED = 32


class BranchOutputs(NamedTuple):
    """What a model makes of a batch for one branch of predictions."""

    outputs: CPCOutputs
    positions: AnyPosition
    """Where the latents come from; arrays that broadcast to their shape."""
    exists: jax.Array | None = None
    """Which latents exist, (b, t, ...); None for all. Padding counts for nothing."""


def init_objective(plan: Plan, branches: Sequence[BranchOutputs]) -> tuple[PyTree, PyTree]:
    """Return what is learned beside the model, and what is carried from step to step."""
    options, params, state = plan.config.negatives, {}, {}
    if options.temperature_rule == "learned":
        raw = negatives.raw_temperature(
            options.temperature, options.temperature_low, options.temperature_high
        )
        params["raw_temperature"] = jnp.asarray(raw, jnp.float32)
    if options.temperature_rule == "entropy":
        state["temperature"] = jnp.asarray(options.temperature, jnp.float32)
    if plan.config.loss.learn_bias:
        params["bias"] = jnp.asarray(plan.config.loss.bias, jnp.float32)
    if options.queue:
        widths = [one[0].z.shape[-1] for one in branches]
        state["queues"] = tuple(negatives.make_queue(options.queue, d) for d in widths)
        state["step"] = jnp.zeros((), jnp.int32)
    return params, state


def objective_loss(
    plan: Plan,
    params: PyTree,
    state: PyTree,
    branches: Sequence[BranchOutputs],
    rng: jax.Array,
    train: bool = True,
    maps: PyTree | None = None,
    reducer: LossReducer | None = None,
) -> tuple[jax.Array, OffsetSums, PyTree, dict[str, jax.Array]]:
    """Return the loss of all branches, their sums by offset, the next state, and metrics.

    Sums of branches follow each other along the offsets. The state moves on only in training.
    """
    options, of_loss = plan.config.negatives, plan.config.loss
    branches = [one._replace(outputs=scored(plan, one.outputs)) for one in branches]
    new_state, queues, metrics = dict(state), [None] * len(branches), {}
    if train and options.temperature_rule == "entropy":
        new_state["temperature"] = _hold_entropy(plan, state, branches[0], rng)
    if train and options.queue:
        queues = state["queues"]
        ages = jnp.where(queues[0].exists, negatives.ages(queues[0], state["step"]), 0)
        metrics["queue_age"] = ages.sum() / jnp.maximum(queues[0].exists.sum(), 1)
        flat = zip(queues, map(_flatten, branches), strict=True)
        new_state["queues"] = tuple(
            negatives.push(queue, keys, positions, state["step"], exists)
            for queue, (keys, positions, exists) in flat
        )
        new_state["step"] = state["step"] + 1
    tau = temperature(plan, params, new_state)
    metrics["temperature"] = tau
    shared = {"choose": plan.choose, "temperature": tau}
    total, parts, frames = jnp.zeros(()), [], []
    for i, ((outputs, positions, exists), queue) in enumerate(zip(branches, queues, strict=True)):
        shared |= {"rng": jax.random.fold_in(rng, i), "where": exists}
        offsets = plan.geometry.branches[i].offsets
        if plan.geometry.is_aligned:
            value, sums, of_each = acpc_loss(
                outputs, positions, plan.rule,
                num_frames=offsets[-1], best=of_loss.align_by == "best", **shared,
            )  # fmt: skip
            frames.append(of_each)
        else:
            value, sums = cpc_loss(
                outputs, positions, plan.rule,
                maps=None if of_loss.cosine else maps, loss=plan.loss,
                bias=params.get("bias", of_loss.bias), offsets=offsets,
                memory=None if queue is None else _memory(queue, positions),
                reducer=reducer, **shared,
            )  # fmt: skip
        total, parts = total + value, [*parts, sums]
    sums = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    if frames:
        metrics["frames_per_prediction"] = jnp.concatenate(frames)
    return total, sums, new_state, metrics


def reducer_of(mesh: jax.sharding.Mesh | None) -> LossReducer | None:
    """Return what scores each device's own anchors, if there are several devices."""
    return make_reducer(mesh, BATCH_AXIS) if mesh is not None and mesh.size > 1 else None


def _hold_entropy(plan, state, branch, rng):
    """Return the temperature at which the negatives' weights keep their entropy."""
    options, tau = plan.config.negatives, state["temperature"]
    # Proposed ones are corrected to weigh alike: the entropy is that of all they stand for.
    watched = None if options.choose == "proposed" else plan.choose
    queue = state["queues"][0] if options.queue else None
    _, scores, where = watched_scores(
        branch, plan.rule, watched, plan.geometry.branches[0].offsets, tau, rng, queue
    )
    return negatives.hold_entropy(
        tau, tau * scores, where, options.target_entropy,
        options.temperature_low, options.temperature_high,
    )  # fmt: skip


def temperature(plan: Plan, params: PyTree, state: PyTree) -> jax.Array:
    """Return the temperature: learned, held, or fixed."""
    options = plan.config.negatives
    if options.temperature_rule == "learned":
        return negatives.bounded_temperature(
            params["raw_temperature"], options.temperature_low, options.temperature_high
        )
    return state.get("temperature", jnp.float32(options.temperature))


def scored(plan: Plan, outputs: CPCOutputs) -> CPCOutputs:
    """Return outputs whose dot products are the scores, before the temperature."""
    return to_cosines(outputs) if plan.config.loss.cosine else outputs


def to_cosines(outputs: CPCOutputs) -> CPCOutputs:
    """Return outputs whose scores are cosines: latents and predictions of length 1."""

    def unit(x):
        return x / jnp.sqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))

    return outputs._replace(z=unit(outputs.z), predictions=unit(outputs.predictions))


def _memory(queue, like):
    """What the queue holds, with positions of the same kind as the batch's."""
    positions = queue.positions
    if isinstance(like, SoundPosition):  # a place on the line that the first 37 hours do not reach
        nowhere = jnp.full_like(positions.sequence, jnp.iinfo(jnp.int32).min)
        positions = SoundPosition(*positions, sample=nowhere, end=nowhere, window=nowhere)
    return MemoryBank(queue.keys, positions, queue.exists)


def _flatten(branch):
    """Latents (n, d), their positions, and which exist; no gradient."""
    z, shape = branch.outputs.z, branch.outputs.z.shape[:-1]
    where = branch.positions, branch.exists
    positions, exists = jax.tree.map(lambda x: jnp.broadcast_to(x, shape).reshape(-1), where)
    return jax.lax.stop_gradient(z.reshape(-1, z.shape[-1])), positions, exists


def watched_scores(
    branch: BranchOutputs,
    rule: Rule,
    choose: NegativeSampler | None,
    offsets: Sequence[int],
    temperature: Any,
    rng: Any,
    queue: negatives.Queue | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return scores of some anchors of each offset: positives (m,), negatives (m, n), their mask.

    Outputs are those that `scored` returns, candidates theirs and those of a queue; no gradient.
    """
    z, _, predictions = jax.tree.map(jax.lax.stop_gradient, branch.outputs)
    lanes = z[0, 0, ..., 0].size
    keys, flat, exists = _flatten(branch)
    own = Latents(flat, jnp.ones(len(keys), bool) if exists is None else exists)
    keys, (candidates, there) = (
        (keys, own) if queue is None else add_memory(keys, own, _memory(queue, flat))
    )
    num_rows, length = z.shape[:2]
    positives, rows, wheres = [], [], []
    for i, k in enumerate(offsets):
        usable = num_rows * (length - k) * lanes
        picked = jnp.linspace(0, usable - 1, min(ANCHORS_WATCHED, usable)).astype(jnp.int32)
        row, column = picked // ((length - k) * lanes), picked % ((length - k) * lanes)
        index = row * length * lanes + column  # the last k times of a row have no positive
        counted = None
        if exists is not None:  # as many, evenly, of those that exist and have a positive
            ahead = exists.reshape(num_rows, -1)[:, k * lanes :]
            counted = exists & jnp.pad(ahead, ((0, 0), (0, k * lanes))).ravel()
            nth = jnp.linspace(0, jnp.maximum(counted.sum() - 1, 0), len(picked)).astype(jnp.int32)
            index = jnp.argsort(~counted, stable=True)[nth]
        queries = predictions[..., i, :].reshape(-1, z.shape[-1])[index]
        scores = jnp.matmul(queries, keys.T, preferred_element_type=jnp.float32)
        scores = scores / temperature
        anchors = jax.tree.map(lambda p, index=index: p[index][:, None], flat)
        where = jnp.broadcast_to(rule(anchors, candidates, k) & there, scores.shape)
        if counted is not None:
            where = where & counted[index][:, None]
        positive = jnp.where(is_positive(anchors, candidates, k), scores, 0.0).sum(-1)
        if choose is not None:
            scores, where = choose(rng, positive, scores, where)
        positives.append(positive)
        rows.append(scores)
        wheres.append(where)
    return jnp.concatenate(positives), jnp.concatenate(rows), jnp.concatenate(wheres)
