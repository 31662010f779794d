"""Training and the training step of the contrastive kinds."""

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from cpc.data import prefetch
from cpc.models import Model
from cpc.models.load import BATCH_COLLECTIONS
from cpc.train import (
    Cadence,
    ProgressWriter,
    TrainState,
    init_state,
    jit_step,
    make_optimizer,
    make_train_step,
    put_batch,
    replicate,
    restore_params,
)
from cpc.train.step import make_launch
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset
from experiments.training.loop import Training, run_training
from experiments.training.objective import init_objective, objective_loss, reducer_of
from experiments.training.problem import Probe, Problem, find_part, model_variables
from experiments.training.records import describe_record, make_evaluation, make_summary, strict_sums


def train(
    workdir: pathlib.Path, problem: Problem, probe: Probe, mesh: jax.sharding.Mesh
) -> tuple[str, Any]:
    """Train to the last step or a signal, and return the signal's name (or "") and variables."""
    config = problem.plan.config
    state, step, schedule = make_step(problem, mesh)
    console = ProgressWriter(config.num_steps, describe_record, problem.per_step)
    training = Training(
        state,
        step,
        make_batches(problem, mesh, config.num_steps),
        num_steps=config.num_steps,
        per_step=problem.per_step,
        summarize=make_summary(problem, schedule, console.say),
        evaluate=make_evaluation(problem, probe, mesh),
        cadence=cadence_of(config),
    )
    state, reason = run_training(workdir, config, training, console)
    return reason, model_variables(state.params, state.ema, state.extra)


def make_batches(
    problem: Problem, mesh: jax.sharding.Mesh, num_steps: int
) -> Callable[[int], Iterator[Any]]:
    """Return a function that iterates over batches on the devices from a given first step.

    If a launch has several steps, it yields one tuple of batches per launch.
    """
    config = problem.plan.config
    per_launch = config.steps_per_launch

    def put(launch):
        steps = range(launch * per_launch, (launch + 1) * per_launch)
        batches = tuple(put_batch(problem.draw(step), mesh) for step in steps)
        return batches if per_launch > 1 else batches[0]

    end, num_threads = num_steps // per_launch, config.data.num_threads
    return lambda first: prefetch(put, first // per_launch, end, num_threads=num_threads)


def cadence_of(config: Config) -> Cadence:
    """Return the logging, evaluation and saving intervals of a config."""
    return Cadence(*(config[name] for name in Cadence._fields))


def make_step(
    problem: Problem, mesh: jax.sharding.Mesh
) -> tuple[TrainState, Callable[[TrainState, Batch], TrainState], Callable]:
    """Return the initial state, the compiled step, and the learning rate schedule."""
    config = problem.plan.config
    tx, schedule = optimizer_of(config)
    loss_fn = make_loss(problem, mesh)
    state = replicate(make_state(problem, loss_fn, tx), mesh)
    step = make_train_step(loss_fn, tx, ema_decay=config.optim.ema_decay)
    step = make_launch(step) if config.steps_per_launch > 1 else step
    return state, jit_step(step, state), schedule


def optimizer_of(config: Config, **changes: Any) -> tuple[optax.GradientTransformation, Callable]:
    """Return the optimizer and schedule of a config, with options overridden by `changes`."""
    names = ("learning_rate", "warmup_steps", "schedule", "name", "clip_norm", "weight_decay")
    options = {"num_steps": config.num_steps, **subset(config.optim, *names)}
    return make_optimizer(**options | changes)


def apply_in_parts(
    model: Model, variables: Any, batch: Batch, rng: Any, num_parts: int, train: bool = True
) -> tuple[Any, Any]:
    """Apply a model to a batch in parts, with the activations of one part in memory at a time.

    The backward pass recomputes activations part by part, so that negatives can come from the whole
    batch (Gao et al. 2021, "Scaling deep contrastive learning batch size").
    """
    if num_parts == 1:
        return model.apply(variables, batch, train, rng)

    def split(x):  # interleaved, so that each part has rows from every device
        return x.reshape(-1, num_parts, *x.shape[1:]).swapaxes(0, 1)

    def join(x):
        return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a loop already prevents CSE
    def apply_part(part):
        batch, rng = part
        return model.apply(variables, batch, train, rng)[0]

    parts = jax.tree.map(split, batch), jax.random.split(rng, num_parts)
    outputs = jax.tree.map(join, jax.lax.map(apply_part, parts))
    return outputs, {name: value for name, value in variables.items() if name != "params"}


def make_loss(problem: Problem, mesh: jax.sharding.Mesh | None = None) -> Callable:
    """Return loss_fn(params, extra, batch, rng) -> (loss, (extra, metrics)) for a global batch."""
    plan, reducer = problem.plan, reducer_of(mesh)
    num_parts, momentum = plan.config.optim.accumulate, plan.config.negatives.momentum

    def loss_fn(params, extra, batch, rng):
        augment_rng, model_rng, objective_rng = jax.random.split(rng, 3)
        batch = problem.preprocess(batch, augment_rng, True)
        frozen = extra.get("frozen", {})
        model = {**params["model"], **frozen}
        variables = {"params": model, **extra["model"]}
        outputs, model_state = apply_in_parts(problem.model, variables, batch, model_rng, num_parts)
        model_state = keep_frozen(extra["model"], model_state, frozen)
        branches = problem.split_branches(outputs, batch)
        state = dict(extra["objective"])
        if momentum:
            stopped = jax.lax.stop_gradient(model)
            state["slow"] = optax.incremental_update(stopped, state["slow"], 1 - momentum)
            variables = {"params": state["slow"], **extra["model"]}
            keys = apply_in_parts(problem.model, variables, batch, model_rng, num_parts, False)
            keys = problem.split_branches(keys[0], batch)
            branches = [
                one._replace(outputs=one.outputs._replace(z=jax.lax.stop_gradient(key.outputs.z)))
                for one, key in zip(branches, keys, strict=True)
            ]
        maps = problem.model.linear_maps(model)
        own = params["objective"]
        loss, sums, state, metrics = objective_loss(
            plan, own, state, branches, objective_rng, maps=maps, reducer=reducer
        )
        if not plan.description.has_log_n:
            strict, _ = strict_sums(plan, own, state, [branches])
            metrics = {**metrics, "strict": strict}
        # Modules may store "penalties", added to the loss, and "measures", which are only recorded.
        penalties, measures = (
            collection_scalars(model_state, name) for name in ("penalties", "measures")
        )
        if penalties or measures:
            metrics = {**metrics, "model": {**penalties, **measures}}
        loss += sum(penalties.values())
        extra = {**extra, "model": model_state, "objective": state}
        return loss, (extra, {"offsets": sums, **metrics})

    return loss_fn


def keep_frozen(before: Any, after: Any, frozen: Any) -> Any:
    """Return the model state after a step, in which frozen submodules keep their statistics."""
    return {
        name: tree if name in BATCH_COLLECTIONS
        else {**tree, **{own: before[name][own] for own in tree.keys() & frozen.keys()}}
        for name, tree in after.items()
    }  # fmt: skip


def collection_scalars(state: Any, name: str) -> dict[str, jax.Array]:
    """Return the scalars in a collection of a model's state, keyed by the last part of their path.

    >>> collection_scalars({"penalties": {"encoder": {"commitment": 0.5}}}, "penalties")
    {'commitment': 0.5}
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.get(name, {}))
    return {str(path[-1].key): value for path, value in leaves}


def make_state(problem: Problem, loss_fn: Callable, tx: Any) -> TrainState:
    """Return the initial training state."""
    plan, config = problem.plan, problem.plan.config
    root, raw = jax.random.key(config.seed), problem.draw(0)
    batch = jax.eval_shape(lambda raw: problem.preprocess(raw, root, True), raw)
    batch = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), batch)
    variables = dict(problem.start(problem.model.init(jax.random.fold_in(root, 0), batch)))
    model = variables.pop("params")
    branches = jax.eval_shape(
        lambda v: problem.split_branches(problem.model.apply(v, batch, False)[0], batch),
        {"params": model, **variables},
    )
    frozen = {name: tree for name, tree in model.items() if find_part(name) in config.freeze}
    trained = {name: tree for name, tree in model.items() if name not in frozen}
    own, state = init_objective(plan, branches)
    if config.negatives.momentum:
        state["slow"] = model
    params = {"model": trained, "objective": own}
    extra = {"model": variables, "objective": state} | ({"frozen": frozen} if frozen else {})
    _, (_, metrics) = jax.eval_shape(loss_fn, params, extra, raw, root)
    has_ema = config.optim.ema_decay > 0 or config.optim.name == "schedule_free"

    @jax.jit  # one program compiles faster than a hundred small ones
    def make(params, extra, rng):
        return init_state(params, extra, tx, rng, metrics, has_ema)

    return make(params, extra, jax.random.fold_in(root, 1))


def read_variables(workdir: pathlib.Path, step: str | None = None) -> tuple[Any, int]:
    """Return the variables and the step of a run's checkpoint, by default the newest."""
    if step is not None and step != "best" and not step.isdecimal():
        raise UserError(f"the step is {step!r}: set it to a number or to best")
    number = int(step) if step is not None and step != "best" else step
    arrays, _, found = restore_params(workdir / "checkpoints", number)
    return model_variables(**arrays), found
