"""The training run of every kind of data, and the records that it writes."""

import contextlib
import functools
import importlib.util
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cpc.data import prefetch
from cpc.estimators import Track, Tracker, bound_over_sequences
from cpc.evaluate import feature_spread
from cpc.files import plain
from cpc.losses import OffsetSums
from cpc.models import Model
from cpc.results import Score, name_of
from cpc.results.scores import read_records
from cpc.train import (
    Checkpoints,
    JsonlWriter,
    ProgressWriter,
    ServiceWriter,
    TensorBoardWriter,
    TrainState,
    Writer,
    fit,
    init_state,
    is_first,
    jit_step,
    make_optimizer,
    make_train_step,
    open_checkpoints,
    put_batch,
    replicate,
    restore_params,
    run_on_first,
    stop_on_signals,
)
from cpc.train.step import make_launch
from cpc.types import Batch, CPCOutputs, UserError
from experiments.command.config import Config
from experiments.objective import Direction, Objective

#: probe(variables, step) fits and records the probes, and returns their scores.
Probe: TypeAlias = Callable[[Any, int], list[Score]]
#: What an objective may record of itself, as means over the steps.
OBJECTIVE = ("temperature", "queue_age", "frames_per_prediction")
#: Of these, what an evaluation records, too, as means over its batches.
EVALUATED = ("frames_per_prediction",)
#: The bound that asks for no particular loss or rule.
STRICT = Tracker(True, "one_per_sequence")


class Problem(NamedTuple):
    """What makes one problem differ from another."""

    model: Model
    objective: Objective
    offsets: tuple[int, ...]
    """Steps ahead that are predicted."""
    directions: tuple[str, ...]
    """Names of the directions of prediction."""
    prepare: Callable[[Batch, Any, bool], Batch]
    """prepare(batch, rng, train) -> the batch as the model takes it, augmented, on the device."""
    split_directions: Callable[[Any, Batch], Sequence[Direction]]
    """split_directions(outputs, batch) -> outputs and positions of each direction, and which of its
    latents exist."""
    label: Callable[[Batch], dict[str, np.ndarray]]
    """label(batch) -> what latents are of, by name, as the positions broadcast; for audits."""
    draw: Callable[[int], Batch]
    """Index of a step -> its batch."""
    draw_test: Callable[[int], Batch] | None
    """Held-out batches, drawn as those of the training; None for no evaluation."""
    draw_any_test: Callable[[int], Batch] | None
    """Held-out batches of independently drawn sequences, for the strict bound."""
    num_tests: int
    """Batches in an evaluation."""
    per_step: tuple[float, str]
    """What a batch holds, and its unit, such as (0.003, "h audio")."""


def train(
    config: Config,
    workdir: pathlib.Path,
    problem: Problem,
    probe: Probe,
    mesh: jax.sharding.Mesh,
) -> tuple[str, Any]:
    """Train to the last step or to a signal; returns the signal's name and the variables."""
    state, step, schedule = make_step(config, problem, mesh)
    per_launch = config.steps_per_launch

    def batches(first):
        def put(launch):
            steps = range(launch * per_launch, (launch + 1) * per_launch)
            batches = tuple(put_batch(problem.draw(step), mesh) for step in steps)
            return batches if per_launch > 1 else batches[0]

        # Drawn and copied to the device by threads, while the steps before are computed.
        return prefetch(
            put,
            first // per_launch,
            config.num_steps // per_launch,
            num_threads=config.data.num_threads,
        )

    console = ProgressWriter(
        config.num_steps, ("loss", "nats", "top1", "chance", "strict_nats"), problem.per_step
    )
    with open_training(workdir, state, console, config) as (state, checkpoint, writers, stop):
        seconds = seconds_recorded(workdir) if is_first() else 0.0
        state, reason = fit(
            state,
            step,
            batches,
            num_steps=config.num_steps,
            summarize=make_summary(problem, schedule, console.say, seconds),
            log_every=config.log_every,
            evaluate=make_evaluation(config, problem, probe, mesh),
            eval_every=config.eval_every,
            checkpoint=checkpoint,
            save_every=config.save_every,
            writers=writers,
            stop=stop,
            steps_per_launch=per_launch,
            metadata={"config": plain(config)},
        )
    return reason, model_variables(state.params, state.ema, state.extra)


@contextlib.contextmanager
def open_training(
    folder: pathlib.Path, state: TrainState, console: ProgressWriter, config: Config
) -> Iterator[tuple[TrainState, Checkpoints, Sequence[Writer], Callable[[], str]]]:
    """The newest state of a run directory, its checkpoints, its writers, and `stop`."""
    with open_checkpoints(folder / "checkpoints", print) as checkpoint, stop_on_signals() as stop:
        restored = restore(checkpoint, state)
        state = restored[0] if restored else state
        start = int(state.step)
        if start:
            console.say(f"resuming from step {start:,}")
        writers: list[Writer] = []
        if is_first():
            tensorboard = TensorBoardWriter(folder / "tensorboard", start)
            writers = [JsonlWriter(folder / "metrics.jsonl", start), tensorboard, console]
            if config.get("logger"):
                service = importlib.import_module(config.logger)
                writers.append(ServiceWriter(service, folder.name, plain(config), say=console.say))
        yield state, checkpoint, writers, stop
        for writer in writers:
            writer.close()


def check_logger(config: Config) -> None:
    """Check that the service's package is there.

    Raises:
        UserError: it is not; names the pip line.
    """
    if importlib.util.find_spec(config.logger or "cpc") is None:
        raise UserError(
            f"logger is {config.logger}, which is not installed: pip install {config.logger}, or "
            "leave logger empty"
        )


def restore(checkpoint: Checkpoints, state: TrainState) -> tuple[TrainState, Any] | None:
    """Return the newest state and what was saved with it; older runs have no strict sums."""
    try:
        return checkpoint.restore(state)
    except UserError:
        if "strict" not in state.metrics:
            raise
        metrics = dict(state.metrics)
        strict = metrics.pop("strict")
        restored = checkpoint.restore(state._replace(metrics=metrics))
    if restored is None:
        return None
    older, metadata = restored
    return older._replace(metrics={**older.metrics, "strict": strict}), metadata


def make_step(
    config: Config, problem: Problem, mesh: jax.sharding.Mesh
) -> tuple[TrainState, Callable[[TrainState, Batch], TrainState], Callable]:
    """The state before the first step, the compiled step, and the learning rate by step.

    With `steps_per_launch` above 1 the step takes a tuple of so many batches.
    """
    check_parts(config, mesh)
    tx, schedule = make_optimizer(
        learning_rate=config.optim.learning_rate,
        warmup_steps=config.optim.warmup_steps,
        num_steps=config.num_steps,
        schedule=config.optim.schedule,
        name=config.optim.name,
        clip_norm=config.optim.clip_norm,
        weight_decay=config.optim.weight_decay,
    )
    loss_fn = make_loss(problem, config.optim.accumulate)
    state = replicate(make_state(config, problem, loss_fn, tx), mesh)
    step = make_train_step(loss_fn, tx, ema_decay=config.optim.ema_decay)
    step = make_launch(step) if config.steps_per_launch > 1 else step
    return state, jit_step(step, state), schedule


def check_parts(config: Config, mesh: jax.sharding.Mesh) -> None:
    """The batch divides into as many parts as gradients are accumulated over, on all devices."""
    parts, batch_size = config.optim.accumulate, config.data.batch_size
    if parts < 1 or batch_size % (parts * mesh.size):
        raise UserError(
            f"optim.accumulate is {parts}: choose a number of parts into which a batch of "
            f"{batch_size} divides evenly on {mesh.size} devices"
        )
    if config.steps_per_launch < 1:
        raise UserError(f"steps_per_launch is {config.steps_per_launch}: choose 1 or more")
    if parts > 1 and config.model.get("norm") == "batch":
        raise UserError(
            "optim.accumulate shows batch norm a part of the batch at a time, which is another "
            "model: choose another model.norm, or 1"
        )
    if parts > 1 and config.model.get("num_codes", 0):
        raise UserError(
            "optim.accumulate would leave the codes where they are and add no penalty: set "
            "optim.accumulate or model.num_codes to its default"
        )


def apply_in_parts(
    model: Model, variables: Any, batch: Batch, rng: Any, num_parts: int, train: bool = True
) -> tuple[Any, Any]:
    """`model.apply`, with the activations of one part of the batch in memory at a time.

    What the model makes of each part is kept and its activations are not: the gradient computes
    them again, part by part, so that every latent can be every other's negative (Gao et al. 2021,
    "Scaling deep contrastive learning batch size"). Values and gradients are those of the whole.
    """
    if num_parts == 1:
        return model.apply(variables, batch, train, rng)

    def cut(x):  # every part takes rows of every device
        return x.reshape(-1, num_parts, *x.shape[1:]).swapaxes(0, 1)

    def join(x):
        return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a loop keeps its steps apart anyway
    def one_part(part):
        batch, rng = part
        return model.apply(variables, batch, train, rng)[0]

    parts = jax.tree.map(cut, batch), jax.random.split(rng, num_parts)
    outputs = jax.tree.map(join, jax.lax.map(one_part, parts))
    return outputs, {name: value for name, value in variables.items() if name != "params"}


def make_loss(problem: Problem, num_parts: int = 1) -> Callable:
    """loss_fn(params, extra, batch, rng) -> (loss, (extra, metrics)), on the global batch.

    Parameters and what else is carried are {"model": ..., "objective": ...}.
    """
    objective = problem.objective

    def loss_fn(params, extra, batch, rng):
        of_augmentation, of_model, of_objective = jax.random.split(rng, 3)
        batch = problem.prepare(batch, of_augmentation, True)
        variables = {"params": params["model"], **extra["model"]}
        outputs, model_state = apply_in_parts(problem.model, variables, batch, of_model, num_parts)
        directions = problem.split_directions(outputs, batch)
        state = dict(extra["objective"])
        if objective.momentum:
            model = jax.lax.stop_gradient(params["model"])
            state["slow"] = optax.incremental_update(model, state["slow"], 1 - objective.momentum)
            variables = {"params": state["slow"], **extra["model"]}
            keys = apply_in_parts(problem.model, variables, batch, of_model, num_parts, False)
            keys = problem.split_directions(keys[0], batch)
            directions = [
                one._replace(outputs=one.outputs._replace(z=jax.lax.stop_gradient(key.outputs.z)))
                for one, key in zip(directions, keys, strict=True)
            ]
        maps = problem.model.linear_maps(params["model"])
        loss, sums, state, metrics = objective.loss(
            params["objective"], state, directions, of_objective, True, maps
        )
        if not objective.description.has_log_n:
            own = params["objective"]
            strict, _ = strict_sums(objective, own, state, [directions], problem.offsets)
            metrics = {**metrics, "strict": strict}
        penalties, measures = (own_numbers(model_state, name) for name in ("penalties", "measures"))
        if penalties or measures:
            metrics = {**metrics, "model": {**penalties, **measures}}
        loss += sum(penalties.values())
        return loss, ({"model": model_state, "objective": state}, {"offsets": sums, **metrics})

    return loss_fn


def own_numbers(state: Any, name: str) -> dict[str, jax.Array]:
    """Return the scalars in a collection of a model's state, by their last names.

    What its modules leave in "penalties" when they are trained is added to the loss, and what they
    leave in "measures" is recorded alone.

    >>> own_numbers({"penalties": {"encoder": {"commitment": 0.5}}}, "penalties")
    {'commitment': 0.5}
    """
    found, _ = jax.tree_util.tree_flatten_with_path(state.get(name, {}))
    return {str(path[-1].key): value for path, value in found}


def make_state(config: Config, problem: Problem, loss_fn: Callable, tx: Any) -> TrainState:
    """The state before the first step."""
    root, raw = jax.random.key(config.seed), problem.draw(0)
    batch = jax.eval_shape(lambda raw: problem.prepare(raw, root, True), raw)
    batch = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), batch)
    variables = dict(problem.model.init(jax.random.fold_in(root, 0), batch))
    model = variables.pop("params")
    directions = jax.eval_shape(
        lambda v: problem.split_directions(problem.model.apply(v, batch, False)[0], batch),
        {"params": model, **variables},
    )
    own, state = problem.objective.init(directions)
    if problem.objective.momentum:
        state["slow"] = model
    params, extra = {"model": model, "objective": own}, {"model": variables, "objective": state}
    _, (_, metrics) = jax.eval_shape(loss_fn, params, extra, raw, root)
    has_ema = config.optim.ema_decay > 0

    @jax.jit  # one program, where a start would else wait for a hundred small ones
    def make(params, extra, rng):
        return init_state(params, extra, tx, rng, metrics, has_ema)

    return make(params, extra, jax.random.fold_in(root, 1))


def read_variables(workdir: pathlib.Path, step: str | None = None) -> tuple[Any, int]:
    """Return the model of a run's checkpoint, and its step.

    Args:
        step: a number, "best" for the lowest loss on held-out data, or None for the newest.
    """
    number = None if step is None else "best" if step == "best" else parse_step(step)
    arrays, _, found = restore_params(workdir / "checkpoints", number)
    return model_variables(**arrays), found


def parse_step(text: str) -> int:
    """Return the number of a checkpoint."""
    if not text.isdecimal():
        raise UserError(f"--step is {text!r}: give the number of a checkpoint, or best")
    return int(text)


def model_variables(params: Any, ema: Any, extra: Any) -> Any:
    """The model's variables as they are evaluated: the running average, if there is one."""
    # A checkpoint read without its state has no entry for what is empty.
    return {"params": (ema or params)["model"], **extra.get("model", {})}


def strict_sums(
    objective: Objective,
    params: Any,
    state: Any,
    batches: Sequence[Sequence[Direction]],
    offsets: tuple[int, ...],
) -> tuple[OffsetSums, list[tuple[CPCOutputs, Any]]]:
    """Return the sums of the strict bound, and outputs whose dot products it scores, and `exists`.

    `batches` are lists of directions; their sequences are contrasted all together, but for sounds
    that overlap, and nothing has a gradient.
    """
    tau, parts, scored = objective.temperature(params, state), [], []
    for directions in zip(*jax.lax.stop_gradient(batches), strict=True):
        joined = [
            (objective.scored(outputs), exists, getattr(positions, "sample", None))
            for outputs, positions, exists in directions
        ]
        outputs, exists, sample = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *joined)
        sums = bound_over_sequences(
            outputs.z,
            outputs.predictions / tau,
            offsets,
            where=exists,
            rule=objective.apart,
            sample=sample,
        )
        parts.append(sums)
        scored.append((outputs, exists))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts), scored


def describe_track(problem: Problem, tracker: Tracker, track: Track) -> dict[str, Any]:
    """Return the numbers of a record, by offset and, where there are several, direction.

    Of a loss without a log N they are accuracies, and what the loss has instead.
    """
    directions = [name for name in problem.directions for _ in problem.offsets]
    return {
        "rule": tracker.rule,
        "is_bound": tracker.is_bound,
        "offsets": list(problem.offsets) * len(problem.directions),
        **({"directions": directions} if len(problem.directions) > 1 else {}),
        "n": track.n,
        "offset_loss": track.loss,
        "acc_top1": track.acc_top1,
        "chance_top1": 1 / track.n,
        "acc_pairwise": track.acc_pairwise,
        "has_bound": tracker.has_log_n,
        **(describe_bound(track) if tracker.has_log_n else describe_accuracy(problem, track)),
    }


def describe_bound(track: Track) -> dict[str, Any]:
    """Return log N - L, whether it is a bound or an estimate, with its interval and ceiling."""
    return {
        "log_n": track.log_n,
        "bound": track.value,
        "bound_low": track.low,
        "bound_high": track.high,
        "state": list(track.state),
        "nats": mean_of_known(track.value),
    }


def describe_accuracy(problem: Problem, track: Track) -> dict[str, Any]:
    """Return what there is to say of a loss that has no log N."""
    description = problem.objective.description
    return {
        "top1": mean_of_known(track.acc_top1),
        "chance": mean_of_known(1 / track.n),
        "optimum": description.optimum or "none",
        "posterior": description.posterior or "none",
    }


def mean_of_known(values: np.ndarray) -> float:
    """Return the mean over the offsets that had an anchor, NaN if none had.

    Short clips may be all that a few steps see.
    """
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def seconds_recorded(workdir: pathlib.Path) -> float:
    """Return how long the run has trained so far, before this start."""
    records = read_records(workdir, [])
    return max((record.get("seconds") or 0.0 for record in records), default=0.0)


def make_summary(
    problem: Problem, schedule: Callable, say: Callable[[str], None], seconds_before: float = 0.0
) -> Callable[[Mapping[str, Any], int], dict[str, Any]]:
    """Turns the sums of a window of steps into its record; says so when the state changes."""
    tracker = make_tracker(problem.objective)
    begin, last = time.time() - seconds_before, ""
    names = [f" {name}" if len(problem.directions) > 1 else "" for name in problem.directions]
    labels = [f"{k}{name}" for name in names for k in problem.offsets]

    def summarize(sums, step):
        nonlocal last
        track = tracker(sums["offsets"])
        strict = STRICT(sums["strict"]) if "strict" in sums else None
        said = tracker.warning(track, labels) if strict is None else STRICT.warning(strict, labels)
        warning = said or "" if sums["steps"] else ""
        kind = warning.split(":")[0]
        if kind and kind != last:
            say(f"step {step:,}: {warning}")
        last = kind
        return {
            "loss": sums["loss"] / max(sums["steps"], 1.0),
            "gradient_norm": sums["gradient_norm"] / max(sums["steps"], 1.0),
            "learning_rate": float(schedule(step - 1)),
            "seconds": time.time() - begin,
            "per_step": problem.per_step[0],
            "per_step_unit": problem.per_step[1],
            **{name: sums[name] / max(sums["steps"], 1.0) for name in OBJECTIVE if name in sums},
            **{k: v / max(sums["steps"], 1.0) for k, v in sums.get("model", {}).items()},
            **describe_track(problem, tracker, track),
            **({f"strict_{k}": v for k, v in describe_bound(strict).items()} if strict else {}),
        }

    return summarize


def make_tracker(objective: Objective) -> Tracker:
    """Return the tracker of an objective's own loss."""
    return Tracker(objective.is_bound, objective.name, objective.description.has_log_n)


def probes_due(config: Config, step: int) -> bool:
    """Return whether the evaluation of a step fits probes; those of the last step come after it."""
    every = config.probe.every
    return every > 0 and step % every == 0 and step < config.num_steps


def make_evaluation(
    config: Config, problem: Problem, probe: Probe, mesh: jax.sharding.Mesh
) -> Callable[[TrainState], list[dict[str, Any]]]:
    """Held-out batches: the loss under the training rule, the strict bound, and the spread.

    Every `probe.every` steps also the probes.
    """
    if problem.draw_test is None or problem.draw_any_test is None:
        return lambda state: []
    batches = [put_batch(problem.draw_test(i), mesh) for i in range(problem.num_tests)]
    # A batch of one speaker is not drawn from the marginal, and the strict bound needs that.
    mixed = [put_batch(problem.draw_any_test(i), mesh) for i in range(problem.num_tests)]
    objective, rng = problem.objective, jax.random.key(0)
    tracker = make_tracker(objective)

    def predict(variables, batch):
        batch = problem.prepare(batch, rng, False)
        return problem.split_directions(problem.model.apply(variables, batch, False)[0], batch)

    @jax.jit
    def measure(variables, own, batch):
        _, sums, _, metrics = objective.loss(*own, predict(variables, batch), rng, False)
        return sums, {name: metrics[name] for name in EVALUATED if name in metrics}

    @jax.jit
    def together(variables, own, batches):
        batches = [predict(variables, batch) for batch in batches]
        strict, scored = strict_sums(objective, own[0], own[1], batches, problem.offsets)
        (z, c, _), exists = scored[0]
        where = None if exists is None else exists.ravel()
        return strict, *(feature_spread(x.reshape(-1, x.shape[-1]), where) for x in (z, c))

    def evaluate(state):
        variables = model_variables(state.params, state.ema, state.extra)
        own, step = (state.params["objective"], state.extra["objective"]), int(state.step)
        # One at a time: on a CPU split in eight, programs at once can wait for each other for ever.
        measured = [jax.device_get(measure(variables, own, batch)) for batch in batches]
        sums, means = jax.tree.map(lambda *leaves: sum(leaves), *measured)
        track = tracker(sums)
        strict, (std_z, rank_z), (std_c, rank_c) = jax.device_get(together(variables, own, mixed))
        spread = {"std_z": std_z, "rank_z": rank_z, "std_c": std_c, "rank_c": rank_c}
        records = [
            {
                "loss": float(np.nansum(track.loss)),
                **spread,
                **{name: value / len(batches) for name, value in means.items()},
                **describe_track(problem, tracker, track),
            },
            {"series": "strict", **describe_track(problem, STRICT, STRICT(strict))},
        ]
        if probes_due(config, step):
            scores = run_on_first(probe, variables, step) or []
            records.append({"series": "probes"} | {name_of(one): one.value for one in scores})
        return records

    return evaluate
