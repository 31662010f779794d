"""The loss of a plan, with its temperature and queue, as pure functions.

Parameters of the objective (a learned temperature or bias) are trained together with the model.
Other state (a controlled temperature, a queue, a momentum encoder) is part of the training state.
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

#: Number of anchors per offset whose negatives control the temperature.
NUM_ANCHORS = 32


class BranchOutputs(NamedTuple):
    """Outputs of a model for one branch of predictions."""

    outputs: CPCOutputs
    positions: AnyPosition
    """Positions of the latents, as arrays that broadcast to their shape."""
    mask: jax.Array | None = None
    """Mask of the latents (b, t, ...), False for padding, or None without padding."""


def init_objective(plan: Plan, branches: Sequence[BranchOutputs]) -> tuple[PyTree, PyTree]:
    """Initialise the objective's parameters and its non-trained state."""
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
    """Compute the loss of all branches.

    Only in training are queues used as negatives, and queues and the temperature updated. `maps`
    are the prediction matrices of a linear predictor, and `reducer` comes from `reducer_of`.

    Returns:
        The loss summed over branches, the per-offset sums of all branches in order, the next
        state, and metrics.
    """
    options, loss_options = plan.config.negatives, plan.config.loss
    branches = [one._replace(outputs=scored(plan, one.outputs)) for one in branches]
    new_state, queues, metrics = dict(state), [None] * len(branches), {}
    if train and options.temperature_rule == "entropy":
        new_state["temperature"] = _hold_entropy(plan, state, branches[0], rng)
    if train and options.queue:
        queues = state["queues"]
        ages = jnp.where(queues[0].mask, negatives.ages(queues[0], state["step"]), 0)
        metrics["queue_age"] = ages.sum() / jnp.maximum(queues[0].mask.sum(), 1)
        flat = zip(queues, map(_flatten, branches), strict=True)
        new_state["queues"] = tuple(
            negatives.push(queue, keys, positions, state["step"], mask)
            for queue, (keys, positions, mask) in flat
        )
        new_state["step"] = state["step"] + 1
    tau = temperature(plan, params, new_state)
    metrics["temperature"] = tau
    shared = {"sampler": plan.sampler, "temperature": tau}
    total, parts, frames = jnp.zeros(()), [], []
    for i, ((outputs, positions, mask), queue) in enumerate(zip(branches, queues, strict=True)):
        shared |= {"rng": jax.random.fold_in(rng, i), "where": mask}
        offsets = plan.geometry.branches[i].offsets
        if plan.geometry.is_aligned:
            value, sums, num_frames = acpc_loss(
                outputs, positions, plan.rule,
                num_frames=offsets[-1], best=loss_options.align_by == "best", **shared,
            )  # fmt: skip
            frames.append(num_frames)
        else:
            value, sums = cpc_loss(
                outputs, positions, plan.rule,
                maps=None if loss_options.cosine else maps, loss=plan.loss,
                bias=params.get("bias", loss_options.bias), offsets=offsets,
                memory=None if queue is None else _memory(queue, positions),
                reducer=reducer, **shared,
            )  # fmt: skip
        total, parts = total + value, [*parts, sums]
    sums = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    if frames:
        metrics["frames_per_prediction"] = jnp.concatenate(frames)
    return total, sums, new_state, metrics


def reducer_of(mesh: jax.sharding.Mesh | None) -> LossReducer | None:
    """Return the loss reducer for a mesh, or None if the mesh has a single device."""
    return make_reducer(mesh, BATCH_AXIS) if mesh is not None and mesh.size > 1 else None


def _hold_entropy(plan, state, branch, rng):
    """Return the temperature that moves the weight entropy of the negatives to its target."""
    options, tau = plan.config.negatives, state["temperature"]
    # Proposed negatives are corrected to equal weights: use the entropy over all candidates.
    sampler = None if options.choose == "proposed" else plan.sampler
    queue = state["queues"][0] if options.queue else None
    _, scores, where = sampled_scores(
        branch, plan.rule, sampler, plan.geometry.branches[0].offsets, tau, rng, queue
    )
    return negatives.hold_entropy(
        tau, tau * scores, where, options.target_entropy,
        options.temperature_low, options.temperature_high,
    )  # fmt: skip


def temperature(plan: Plan, params: PyTree, state: PyTree) -> jax.Array:
    """Return the current temperature under the plan's temperature rule."""
    options = plan.config.negatives
    if options.temperature_rule == "learned":
        return negatives.bounded_temperature(
            params["raw_temperature"], options.temperature_low, options.temperature_high
        )
    return state.get("temperature", jnp.float32(options.temperature))


def scored(plan: Plan, outputs: CPCOutputs) -> CPCOutputs:
    """Normalise outputs if the plan scores by cosine, so that scores are dot products."""
    return to_cosines(outputs) if plan.config.loss.cosine else outputs


def to_cosines(outputs: CPCOutputs) -> CPCOutputs:
    """Scale latents and predictions to unit length, so that their dot products are cosines."""

    def unit(x):
        return x / jnp.sqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))

    return outputs._replace(z=unit(outputs.z), predictions=unit(outputs.predictions))


def _memory(queue, like):
    """Return the queue as a memory bank, with positions of the same type as `like`."""
    positions = queue.positions
    if isinstance(like, SoundPosition):  # a sample that overlaps no batch in 37 hours of audio
        nowhere = jnp.full_like(positions.sequence, jnp.iinfo(jnp.int32).min)
        positions = SoundPosition(*positions, sample=nowhere, end=nowhere, window=nowhere)
    return MemoryBank(queue.keys, positions, queue.mask)


def _flatten(branch):
    """Return the latents (n, d) without gradient, their positions, and their mask."""
    z, shape = branch.outputs.z, branch.outputs.z.shape[:-1]
    arrays = branch.positions, branch.mask
    positions, mask = jax.tree.map(lambda x: jnp.broadcast_to(x, shape).reshape(-1), arrays)
    return jax.lax.stop_gradient(z.reshape(-1, z.shape[-1])), positions, mask


def sampled_scores(
    branch: BranchOutputs,
    rule: Rule,
    sampler: NegativeSampler | None,
    offsets: Sequence[int],
    temperature: Any,
    rng: Any,
    queue: negatives.Queue | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Score `NUM_ANCHORS` evenly spaced anchors per offset, without gradient.

    `branch` has outputs as returned by `scored`, and `queue` additional candidates.

    Returns:
        Scores of the positives (m,) and the negatives (m, n), and the negatives' mask (m, n).
    """
    z, _, predictions = jax.tree.map(jax.lax.stop_gradient, branch.outputs)
    lanes = z[0, 0, ..., 0].size
    keys, flat, latent_mask = _flatten(branch)
    own = Latents(flat, jnp.ones(len(keys), bool) if latent_mask is None else latent_mask)
    keys, (candidates, is_real) = (
        (keys, own) if queue is None else add_memory(keys, own, _memory(queue, flat))
    )
    num_rows, length = z.shape[:2]
    found = []
    for i, k in enumerate(offsets):
        usable = num_rows * (length - k) * lanes
        nth = jnp.linspace(0, usable - 1, min(NUM_ANCHORS, usable)).astype(jnp.int32)
        row, column = nth // ((length - k) * lanes), nth % ((length - k) * lanes)
        index = row * length * lanes + column  # the last k times of a row have no positive
        is_usable = None
        if latent_mask is not None:  # space anchors evenly over the latents that have a positive
            targets = latent_mask.reshape(num_rows, -1)[:, k * lanes :]
            is_usable = latent_mask & jnp.pad(targets, ((0, 0), (0, k * lanes))).ravel()
            last = jnp.maximum(is_usable.sum() - 1, 0)
            nth = jnp.linspace(0, last, len(nth)).astype(jnp.int32)
            index = jnp.argsort(~is_usable, stable=True)[nth]
        queries = predictions[..., i, :].reshape(-1, z.shape[-1])[index]
        scores = jnp.matmul(queries, keys.T, preferred_element_type=jnp.float32)
        scores = scores / temperature
        anchors = jax.tree.map(lambda p, index=index: p[index][:, None], flat)
        mask = jnp.broadcast_to(rule(anchors, candidates, k) & is_real, scores.shape)
        if is_usable is not None:
            mask = mask & is_usable[index][:, None]
        positive = jnp.where(is_positive(anchors, candidates, k), scores, 0.0).sum(-1)
        if sampler is not None:
            scores, mask = sampler(rng, positive, scores, mask)
        found.append((positive, scores, mask))
    positives, all_scores, masks = map(jnp.concatenate, zip(*found, strict=True))
    return positives, all_scores, masks
