"""What a config asks of the loss: objective, negatives, temperature and memory, as pure functions.

Their own parameters (a learned temperature or bias) are trained with the model's; what they carry
from step to step (a held temperature, a queue, a momentum encoder) lives in the training state.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc import negatives
from cpc.losses import (
    Description,
    MemoryBank,
    OffsetSums,
    acpc_loss,
    cpc_loss,
    describe,
    describe_aligned,
)
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
from experiments.choices import (
    FLOORED,
    are_independent,
    build_choice,
    build_loss,
    build_rule,
    check_alignment,
    check_groups,
    check_temperature,
    name_negatives,
)
from experiments.command.config import Config

#: Anchors of each offset whose negatives' weights hold the temperature.
ANCHORS_WATCHED = 32


class Direction(NamedTuple):
    """One direction of prediction."""

    outputs: CPCOutputs
    positions: AnyPosition
    """Where the latents come from; arrays that broadcast to their shape."""
    exists: jax.Array | None = None
    """Which latents exist, (b, t, ...); None for all. Padding counts for nothing."""


class Objective(NamedTuple):
    """The loss of a model's outputs, and what it keeps."""

    rule: Rule
    name: str
    """Of rule, choice and memory, for records."""
    choose: NegativeSampler | None
    """Which of the negatives that the rule allows are used; None for all."""
    description: Description
    """What the loss learns, and whether log N - L means anything."""
    is_bound: bool
    """Whether log N - L is a lower bound on mutual information."""
    momentum: float
    """Decay of the encoder whose running average makes the keys; 0: the encoder itself."""
    init: Callable[[Sequence[Direction]], tuple[PyTree, PyTree]]
    """init(directions) -> (params, state), of this objective alone; arrays or shapes of arrays."""
    loss: Callable[..., tuple[jax.Array, OffsetSums, PyTree, dict[str, jax.Array]]]
    """loss(params, state, directions, rng, train, maps=None) -> (loss, sums, state, metrics).

    Directions add up in the loss; their sums stand one after the other along the offsets. `maps`
    are those of `cpc_loss`, of outputs as the model made them.
    """
    scored: Callable[[CPCOutputs], CPCOutputs]
    """Outputs whose dot products are the scores, before the temperature."""
    temperature: Callable[[PyTree, PyTree], jax.Array]
    """temperature(params, state) -> tau."""


def build_objective(
    config: Config,
    offsets: tuple[int, ...],
    mesh: jax.sharding.Mesh | None = None,
    apart: Rule | None = None,
) -> Objective:
    """The objective of a config, whose predictions are of these offsets, or of the first of them.

    A direction of fewer predictions is of as many offsets, and aligned to as many frames as the
    last of these is ahead.

    On a mesh of several devices each scores its own anchors (`cpc.parallel`): the same numbers.
    The rule `apart` leaves out what no config wants as a negative: the same sound once more.
    """
    options, of_config = config.negatives, build_rule(config)
    rule = of_config if apart is None else of_config & apart
    of_anchor, choose = build_loss(config.loss), build_choice(options)
    description, is_aligned = describe(of_anchor), config.loss.get("align_to", 0) > 0
    if is_aligned:
        check_alignment(config)
        description = describe_aligned(description)
    check_groups(config)
    check_temperature(options)
    reducer = make_reducer(mesh, BATCH_AXIS) if mesh and mesh.size > 1 else None
    temperature = functools.partial(_temperature, options)

    def scored(outputs):
        return to_cosines(outputs) if config.loss.cosine else outputs

    def loss_of(direction, tau, bias, rng, maps, queue):
        outputs, positions, exists = direction
        own = offsets[: outputs.predictions.shape[-2]]
        shared = {"choose": choose, "temperature": tau, "rng": rng, "where": exists}
        if is_aligned:
            best = config.loss.align_by == "best"
            return acpc_loss(outputs, positions, rule, num_frames=own[-1], best=best, **shared)
        memory = None if queue is None else _memory(queue, positions)
        maps = None if config.loss.cosine else maps
        value, sums = cpc_loss(
            outputs, positions, rule, maps=maps, loss=of_anchor, bias=bias, offsets=own,
            memory=memory, reducer=reducer, **shared,
        )  # fmt: skip
        return value, sums, None

    def loss(params, state, directions, rng, train=True, maps=None):
        directions = [Direction(scored(outputs), *where) for outputs, *where in directions]
        new_state, queues, metrics = dict(state), [None] * len(directions), {}
        if train and options.temperature_rule == "entropy":
            tau = state["temperature"]
            # Proposed ones are corrected to weigh alike: the entropy is that of all they stand for.
            watched = None if options.choose == "proposed" else choose
            queue = state["queues"][0] if options.queue else None
            _, scores, where = watched_scores(
                directions[0], rule, watched, offsets, tau, rng, queue
            )
            new_state["temperature"] = negatives.hold_entropy(
                tau, tau * scores, where, options.target_entropy,
                options.temperature_low, options.temperature_high,
            )  # fmt: skip
        if train and options.queue:
            queues = state["queues"]
            metrics["queue_age"] = _mean_age(queues[0], state["step"])
            new_state |= _push_all(state, directions)
        tau, bias = temperature(params, new_state), params.get("bias", config.loss.bias)
        bias = 0.0 if config.loss.name in FLOORED else bias  # a run that has begun with one goes on
        metrics["temperature"] = tau
        total, parts, frames = jnp.zeros(()), [], []
        for i, (direction, queue) in enumerate(zip(directions, queues, strict=True)):
            key = jax.random.fold_in(rng, i)
            value, sums, of_each = loss_of(direction, tau, bias, key, maps, queue)
            total, parts, frames = total + value, [*parts, sums], [*frames, of_each]
        sums = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        if is_aligned:
            metrics["frames_per_prediction"] = jnp.concatenate(frames)
        return total, sums, new_state, metrics

    return Objective(
        rule=rule,
        name=name_negatives(of_config, choose, options),
        choose=choose,
        description=description,
        is_bound=description.is_bound(are_independent(rule, choose, options)),
        momentum=options.momentum,
        init=functools.partial(_init, config),
        loss=loss,
        scored=scored,
        temperature=temperature,
    )


def _init(config, directions):
    """What is learned beside the model, and what is carried from step to step."""
    options, params, state = config.negatives, {}, {}
    if options.temperature_rule == "learned":
        raw = negatives.raw_temperature(
            options.temperature, options.temperature_low, options.temperature_high
        )
        params["raw_temperature"] = jnp.asarray(raw, jnp.float32)
    if options.temperature_rule == "entropy":
        state["temperature"] = jnp.asarray(options.temperature, jnp.float32)
    if config.loss.learn_bias:
        params["bias"] = jnp.asarray(config.loss.bias, jnp.float32)
    if options.queue:
        widths = [one[0].z.shape[-1] for one in directions]
        state["queues"] = tuple(negatives.make_queue(options.queue, d) for d in widths)
        state["step"] = jnp.zeros((), jnp.int32)
    return params, state


def _temperature(options, params, state):
    """Learned, held, or fixed."""
    if options.temperature_rule == "learned":
        return negatives.bounded_temperature(
            params["raw_temperature"], options.temperature_low, options.temperature_high
        )
    return state.get("temperature", jnp.float32(options.temperature))


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


def _mean_age(queue, step):
    """In steps, of the latents that it holds."""
    ages = jnp.where(queue.exists, negatives.ages(queue, step), 0)
    return ages.sum() / jnp.maximum(queue.exists.sum(), 1)


def _push_all(state, directions):
    """The queues after the latents of a batch, one for each direction, and the next step."""
    queues, step = state["queues"], state["step"]
    pushed = []
    for queue, direction in zip(queues, directions, strict=True):
        keys, positions, exists = _flatten(direction)
        pushed.append(negatives.push(queue, keys, positions, step, exists))
    return {"queues": tuple(pushed), "step": step + 1}


def _flatten(direction):
    """Latents (n, d), their positions, and which exist; no gradient."""
    z, shape = direction.outputs.z, direction.outputs.z.shape[:-1]
    where = direction.positions, direction.exists
    positions, exists = jax.tree.map(lambda x: jnp.broadcast_to(x, shape).reshape(-1), where)
    return jax.lax.stop_gradient(z.reshape(-1, z.shape[-1])), positions, exists


def watched_scores(
    direction: Direction,
    rule: Rule,
    choose: NegativeSampler | None,
    offsets: Sequence[int],
    temperature: Any,
    rng: Any,
    queue: negatives.Queue | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Scores of some anchors of each offset: of positives (m,), of negatives (m, n), which count.

    The outputs are those that `Objective.scored` returns, and the candidates theirs and those of
    the queue; no gradient.
    """
    z, _, predictions = jax.tree.map(jax.lax.stop_gradient, direction.outputs)
    lanes = z[0, 0, ..., 0].size
    keys, flat, exists = _flatten(direction)
    own = Latents(flat, jnp.ones(len(keys), bool) if exists is None else exists)
    keys, (candidates, there) = (
        (keys, own) if queue is None else add_memory(keys, own, _memory(queue, flat))
    )
    num_rows, length = z.shape[0], z.shape[1]
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
