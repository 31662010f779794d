"""What a config asks of the loss: objective, negatives, temperature and memory, as pure functions.

Their own parameters (a learned temperature or bias) are trained with the model's; what they carry
from step to step (a held temperature, a queue, a momentum encoder) lives in the training state.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc import losses, negatives
from cpc.losses import (
    AnchorLoss,
    Description,
    MemoryBank,
    OffsetSums,
    acpc_loss,
    cpc_loss,
    describe,
    describe_aligned,
)
from cpc.parallel import make_reducer
from cpc.train import BATCH_AXIS
from cpc.types import (
    AnyPosition,
    CPCOutputs,
    NegativeSampler,
    PyTree,
    Rule,
    SoundPosition,
    UserError,
    is_positive,
)
from experiments.command.config import Config, check_word

RULES = (
    negatives.batch,
    negatives.excluding_sequence,
    negatives.own_sequence,
    negatives.same_group,
    negatives.one_per_sequence,
)
#: Names that a config once had, and what it should say instead. Of latents no log q is known, and
#: an anchor has one positive: these are then the very same functions.
RENAMED = {
    "ranking_nce": ("info_nce", "without log q of the candidates it is info_nce"),
    "sampled_softmax": (
        "info_nce",
        "it is info_nce, which negatives.choose=proposed corrects for log q of its draws",
    ),
    "nt_xent": ("info_nce", "it is info_nce with loss.cosine=True and negatives.temperature=0.5"),
    "sup_con": ("info_nce", "an anchor has one positive here, which makes it info_nce"),
    "negative_sampling": ("sigmoid", "it is sigmoid with loss.bias=0"),
    "sampled_logistic": ("sigmoid", "without log q of the candidates it is sigmoid"),
}
#: Losses with a floor or a margin that means something on cosines alone.
COSINE = ("debiased", "hard_weighted", "triplet_hard", "triplet_semi_hard", "triplet_all")
CHOICES = ("uniform", "hardest", "semi_hard", "ring", "mixed", "proposed", "with_zero")
TEMPERATURES = ("fixed", "learned", "entropy")
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
    apart: Rule | None
    """The part of it that the strict bound obeys, too."""
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
    """The objective of a config, whose predictions are of these offsets.

    On a mesh of several devices each scores its own anchors (`cpc.parallel`): the same numbers.
    The rule `apart` leaves out what no config wants as a negative: the same sound once more.
    """
    options, of_config = config.negatives, build_rule(config)
    rule = of_config if apart is None else of_config & apart
    of_anchor, choose = build_loss(config.loss), build_choice(options)
    description, num_frames = describe(of_anchor), config.loss.get("align_to", 0)
    if num_frames:
        check_alignment(config, len(offsets))
        description = describe_aligned(description)
    check_temperature(options)
    low, high = options.temperature_low, options.temperature_high
    reducer = make_reducer(mesh, BATCH_AXIS) if mesh and mesh.size > 1 else None

    def init(directions):
        params, state = {}, {}
        if options.temperature_rule == "learned":
            raw = negatives.raw_temperature(options.temperature, low, high)
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

    def scored(outputs):
        return _unit(outputs) if config.loss.cosine else outputs

    def temperature(params, state):
        if options.temperature_rule == "learned":
            return negatives.bounded_temperature(params["raw_temperature"], low, high)
        return state.get("temperature", jnp.float32(options.temperature))

    def loss(params, state, directions, rng, train=True, maps=None):
        directions = [Direction(scored(outputs), *where) for outputs, *where in directions]
        new_state = dict(state)
        if train and options.temperature_rule == "entropy":
            tau = state["temperature"]
            _, scores, where = watched_scores(directions[0], rule, choose, offsets, tau, rng)
            new_state["temperature"] = negatives.hold_entropy(
                tau, tau * scores, where, options.target_entropy, low, high
            )
        tau = temperature(params, new_state)
        queues = state["queues"] if train and options.queue else ()
        total, parts, metrics = jnp.zeros(()), [], {"temperature": tau}
        for i, (outputs, positions, exists) in enumerate(directions):
            if num_frames:
                value, sums, metrics["frames_per_prediction"] = acpc_loss(
                    outputs,
                    positions,
                    rule,
                    num_frames=num_frames,
                    best=config.loss.align_by == "best",
                    choose=choose,
                    temperature=tau,
                    rng=jax.random.fold_in(rng, i),
                    where=exists,
                )
                total += value
                parts.append(sums)
                continue
            value, sums = cpc_loss(
                outputs,
                positions,
                rule,
                maps=None if config.loss.cosine else maps,
                loss=of_anchor,
                choose=choose,
                temperature=tau,
                bias=params.get("bias", config.loss.bias),
                rng=jax.random.fold_in(rng, i),
                where=exists,
                offsets=offsets,
                memory=_memory(queues[i], positions) if queues else None,
                reducer=reducer,
            )
            total += value
            parts.append(sums)
        if queues:
            step = state["step"]
            metrics["queue_age"] = _mean_age(queues[0], step)
            new_state["step"] = step + 1
            new_state["queues"] = tuple(
                _push(queue, direction, step)
                for queue, direction in zip(queues, directions, strict=True)
            )
        sums = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        return total, sums, new_state, metrics

    return Objective(
        rule=rule,
        apart=apart,
        name=name_negatives(of_config, choose, options),
        choose=choose,
        description=description,
        is_bound=description.is_bound(are_independent(rule, choose, options)),
        momentum=options.momentum,
        init=init,
        loss=loss,
        scored=scored,
        temperature=temperature,
    )


def check_alignment(config: Config, num_offsets: int) -> None:
    """Predictions are aligned to as many frames or more, by InfoNCE of one batch."""
    options = config.loss
    if options.align_to < num_offsets:
        raise UserError(
            f"loss.align_to is {options.align_to} and there are {num_offsets} predictions, each of "
            "which takes a frame: raise it, or lower model.num_offsets"
        )
    if options.name != "info_nce":
        raise UserError(
            f"loss.align_to adds up log-probabilities, and loss.name is {options.name!r}: choose "
            "info_nce, or loss.align_to=0"
        )
    if config.negatives.queue:
        raise UserError(
            "loss.align_to takes its negatives from the batch alone: set negatives.queue=0"
        )


def check_temperature(options: Config) -> None:
    """The temperature is above 0, and starts where its rule may take it."""
    check_word("negatives.temperature_rule", options.temperature_rule, TEMPERATURES)
    if options.temperature <= 0:
        raise UserError(f"negatives.temperature is {options.temperature}: it must be above 0")
    low, high = options.temperature_low, options.temperature_high
    if not 0 < low < high:
        raise UserError(
            f"negatives.temperature_low is {low} and temperature_high {high}: they must be above 0 "
            "and ascend"
        )
    if options.temperature_rule != "fixed" and not low < options.temperature < high:
        raise UserError(
            f"negatives.temperature is {options.temperature}: under the rule "
            f"{options.temperature_rule} it starts between temperature_low ({low}) and "
            f"temperature_high ({high})"
        )


def name_negatives(rule: Rule, choose: NegativeSampler | None, options: Config) -> str:
    """Rule, choice and memory, for records."""
    has_number = options.choose not in ("semi_hard", "ring", "with_zero")
    number = f"{options.num_sampled} " if has_number else ""
    chosen = "" if choose is None else f", {number}{options.choose}"
    return f"{rule.name}{chosen}" + (f", queue of {options.queue:,}" if options.queue else "")


def are_independent(rule: Rule, choose: NegativeSampler | None, options: Config) -> bool:
    """Whether the negatives are independent draws from the marginal, as a bound needs them."""
    of_batch = rule.is_bound and not options.queue and not options.momentum
    return of_batch and (choose is None or options.choose == "uniform")


def build_rule(config: Config) -> Rule:
    """The negative rule of a config, with its window and its shards."""
    named = {rule.name: rule for rule in RULES}
    options, batch_size = config.negatives, config.data.batch_size
    check_word("negatives.rule", options.rule, named)
    rule = named[options.rule]
    if options.window:
        rule = rule & negatives.outside_window(options.window)
    if options.shards != 1:
        rule = rule & negatives.within_shards(options.shards, batch_size)
    return rule


def build_loss(options: Config) -> AnchorLoss:
    """The loss of an anchor by the config's word, its options bound; temperature comes before."""
    prior, margin, bind = options.prior, options.margin, functools.partial
    table: dict[str, AnchorLoss] = {
        "info_nce": losses.info_nce,
        # Of K noise samples, with the candidates' own distribution as the reference measure.
        "nce": bind(losses.nce, log_noise_positive=0.0, log_noise_negatives=0.0),
        "decoupled": losses.decoupled,
        "debiased": bind(losses.debiased, prior=prior),
        "hard_weighted": bind(
            losses.hard_weighted,
            prior=prior,
            concentration=options.concentration,
        ),
        "sigmoid": losses.sigmoid,
        "triplet_hard": bind(losses.triplet, margin=margin, mining="hard"),
        "triplet_semi_hard": bind(losses.triplet, margin=margin, mining="semi_hard"),
        "triplet_all": bind(losses.triplet, margin=margin, mining="all"),
    }
    name, _ = RENAMED.get(options.name, (options.name, ""))  # a run that has begun goes on
    check_word("loss.name", name, table)
    return table[name]


def check_loss(options: Config, workdir: str | None = None) -> None:
    """Refuse to begin a run with a loss that is another one's name, or that presumes cosines.

    What has begun in the directory goes on.

    Raises:
        UserError: saying which key to set instead.
    """
    if workdir and (pathlib.Path(workdir).expanduser() / "metrics.jsonl").exists():
        return
    if options.name in RENAMED:
        raise UserError(f"loss.name is {options.name!r}: in a config {RENAMED[options.name][1]}")
    if options.name in COSINE and not options.cosine:
        raise UserError(
            f"loss.name is {options.name!r}, whose scores are cosines: set loss.cosine=True"
        )


def build_choice(options: Config) -> NegativeSampler | None:
    """Which of the allowed negatives an anchor uses; None for all."""
    k = options.num_sampled
    check_word("negatives.choose", options.choose, CHOICES)
    if options.choose == "semi_hard":
        return negatives.semi_hard(options.margin)
    if options.choose == "ring":
        return negatives.percentile_ring(options.ring_low, options.ring_high)
    if options.choose == "with_zero":
        return negatives.with_zero()
    if not k:
        if options.choose == "uniform":
            return None
        raise UserError(
            f"negatives.choose is {options.choose}, which needs a number: set negatives.num_sampled"
        )
    if options.choose == "hardest":
        return negatives.hardest(k)
    if options.choose == "mixed":
        return negatives.mixed(k, k)
    if options.choose == "proposed":
        return negatives.proposed(k, options.proposal)
    return negatives.uniform_subset(k)


def _unit(outputs):
    """Scores become cosines."""

    def unit(x):
        return x / jnp.sqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))

    return outputs._replace(z=unit(outputs.z), predictions=unit(outputs.predictions))


def _memory(queue, like):
    """What the queue holds, with positions of the same kind as the batch's."""
    positions = queue.positions
    if isinstance(like, SoundPosition):  # a place on the line that the first 37 hours do not reach
        nowhere = jnp.full_like(positions.sequence, jnp.iinfo(jnp.int32).min)
        positions = SoundPosition(*positions, sample=nowhere)
    return MemoryBank(queue.keys, positions, queue.exists)


def _mean_age(queue, step):
    """In steps, of the latents that it holds."""
    ages = jnp.where(queue.exists, negatives.ages(queue, step), 0)
    return ages.sum() / jnp.maximum(queue.exists.sum(), 1)


def _push(queue, direction, step):
    """The queue after the latents of a batch."""
    keys, positions, exists = _flatten(direction)
    return negatives.push(queue, keys, positions, step, exists)


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
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Scores of some anchors of each offset: of positives (m,), of negatives (m, n), which count.

    The outputs are those that `Objective.scored` returns; no gradient.
    """
    z, _, predictions = jax.tree.map(jax.lax.stop_gradient, direction.outputs)
    lanes = z[0, 0, ..., 0].size
    keys, flat, exists = _flatten(direction)
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
        anchors, candidates = jax.tree.map(lambda p, index=index: p[index][:, None], flat), flat
        where = jnp.broadcast_to(rule(anchors, candidates, k), scores.shape)
        if exists is not None and counted is not None:
            where = where & exists & counted[index][:, None]
        positive = jnp.where(is_positive(anchors, candidates, k), scores, 0.0).sum(-1)
        if choose is not None:
            scores, where = choose(rng, positive, scores, where)
        positives.append(positive)
        rows.append(scores)
        wheres.append(where)
    return jnp.concatenate(positives), jnp.concatenate(rows), jnp.concatenate(wheres)
