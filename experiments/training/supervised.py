"""End-to-end supervised training of a run's network with a linear softmax layer on top.

For audio, this is the last row of Table 1 of van den Oord et al. (2018), "same architecture".
"""

import contextlib
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from cpc import train
from cpc.data import prefetch
from cpc.files import plain, read_object, write_sealed
from cpc.types import Array, Batch, PyTree
from experiments.command.config import Config
from experiments.training.step import optimizer_of

#: features(params, extra, batch, rng, train) -> (features (..., f), extra)
Features = Callable[[Any, Any, Batch, Array, bool], tuple[Array, Any]]
#: answer(x) -> log-probabilities (..., classes)
Answer: TypeAlias = Callable[[Any], Array]
#: loss(scores (..., classes), batch) -> scalar loss
Loss: TypeAlias = Callable[[Array, Batch], Array]

#: Fraction of the training labels that is held out for early stopping.
HELD_OUT_FRACTION = 0.1
#: Evaluation intervals grow by GROWTH of the step count; training stops after PATIENCE evaluations
#: without improvement.
GROWTH, PATIENCE = 0.05, 6
#: Number of first evaluations that PATIENCE ignores, since the learning rate may still be rising.
NUM_WARMUP_EVALS = 4
#: Length of the cooldown from the best step, as a fraction of the steps before it. The learning
#: rate falls to zero as in the schedules of Hu et al. (2024) and Hägele et al. (2024).
COOLDOWN = 0.2
#: End of a cooldown that has not begun.
NEVER = np.iinfo(np.int32).max
#: Suffix of a training's description if it ended at its maximum number of steps.
AT_LIMIT = ", the most"


def hold_out(number: int, seed: int, always: Sequence[int] = ()) -> tuple[list[int], list[int]]:
    """Split `number` rows into training rows, which include `always`, and a random tenth.

    >>> [len(rows) for rows in hold_out(20, seed=0)], hold_out(2, seed=0, always=[1])
    ([18, 2], ([1], [0]))
    """
    rows = np.setdiff1d(np.arange(number), always)
    num_held = max(1, round(HELD_OUT_FRACTION * len(rows)))
    held = np.sort(np.random.default_rng(seed).choice(rows, num_held, replace=False))
    return np.setdiff1d(np.arange(number), held).tolist(), held.tolist()


def make_own_optimizer(
    config: Config,
    num_steps: int,
    layer_decay: float,
    parts: Sequence[str],
    schedule: str = "constant",
) -> optax.GradientTransformation:
    """Return a run's optimizer with learning rates that decay by `layer_decay` per layer.

    `parts` are the names of the submodules from the head down, as in `train.scale_by_layer`.
    """
    optim = config.optim
    tx, _ = optimizer_of(
        config,
        num_steps=num_steps,
        warmup_steps=min(optim.warmup_steps, num_steps // 10),  # few labels need few steps
        schedule=schedule,
        # schedule_free would require evaluating averaged parameters.
        name="adam" if optim.name == "schedule_free" else optim.name,
    )
    return optax.chain(tx, train.scale_by_layer(layer_decay, parts))


class Recipe(NamedTuple):
    """Optimizer, length and loss for training on labels."""

    tx: optax.GradientTransformation
    num_steps: int
    """Number of steps, or the maximum number if `accuracy` is set."""
    evaluate_every: int
    """Number of steps before the first evaluation. Later intervals grow by `GROWTH`."""
    accuracy: Callable[[Answer], float] | None = None
    """accuracy(answer) on held-out labels for early stopping, or None to train for all steps."""
    loss: Loss = lambda scores, batch: cross_entropy(scores, batch["label"])
    """loss(scores, batch) -> scalar, where labels below 0 are ignored."""


def train_on_labels(
    config: Config,
    features: Features,
    variables: Any,
    draw: Callable[[int], Batch],
    recipe: Recipe,
    *,
    num_classes: int,
    rng: Array,
    writers: Sequence[train.Writer] = (),
    folder: pathlib.Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Answer, str]:
    """Train a network with a softmax layer on top, whose scores are features W + b.

    W and b are initialised to zero. If the recipe has an accuracy, training stops when the accuracy
    no longer improves. The learning rate then falls to zero from the best parameters on, and the
    parameters with the highest accuracy are returned. `writers` receive all accuracies.

    Checkpoints in `folder` let the same call resume after a signal, which raises
    `cpc.train.Stopped`. They are deleted if the config or `settings` (JSON values) differ.

    Returns:
        The trained network as answer(x) in evaluation mode, and a description of the training's
        length.
    """
    score, params, extra = add_linear_head(features, variables, draw(0)["x"], num_classes, rng)
    state, step = make_step(score, params, extra, recipe, rng)
    due, cooldown = plan_evaluations(recipe)
    cadence = train.Cadence(config.log_every, save_every=config.save_every)

    @jax.jit
    def answer(params, extra, x):
        return jax.nn.log_softmax(score(params, extra, {"x": x}, rng, False)[0])

    def measure(state: train.TrainState) -> float:
        """Return the held-out accuracy, or the step if the recipe has no accuracy."""
        number = int(state.step)
        if recipe.accuracy is None:
            return number
        value = float(recipe.accuracy(functools.partial(answer, state.params, state.extra["own"])))
        for writer in writers:
            writer.write({"step": number, "split": "held-out", "accuracy": value})
        return value

    # A checkpoint is only valid for the same stopping criteria.
    length = {"due": due, "patience": [NUM_WARMUP_EVALS, PATIENCE], "cooldown": cooldown}
    settings = {"config": plain(config), **(settings or {}), **length}
    with open_scratch(folder, settings, state) as (checkpoint, state, stop):

        def advance(state, end):
            batches = functools.partial(
                prefetch, draw, stop=end, num_threads=config.data.num_threads
            )
            sinks = train.Sinks(checkpoint, writers)
            return train.fit(
                state, step, batches, num_steps=end, cadence=cadence, sinks=sinks, stop=stop
            )

        state, reason = train_until_best(state, advance, measure, due, cooldown)
        reason = reason or stop()
    best, number = state.extra["best"], int(state.step)
    if reason:
        stopped = f"training on labels stopped by {reason} at step {number:,}"
        raise train.Stopped(f"{stopped}: repeat the command to resume")
    words = f"best at step {int(best['step']):,} of {number:,}"
    at_limit = AT_LIMIT if number == due[-1] + int(cooldown * due[-1]) else ""
    return functools.partial(answer, best["params"], best["extra"]), words + at_limit


def make_step(
    score: Callable[..., tuple[Array, Any]], params: Any, extra: Any, recipe: Recipe, rng: Array
) -> tuple[train.TrainState, Callable[[train.TrainState, Batch], train.TrainState]]:
    """Return the initial state and the compiled training step."""

    def loss_fn(params, extra, batch, rng):
        scores, own = score(params, extra["own"], batch, rng, True)
        return recipe.loss(scores, batch), ({**extra, "own": own}, {})

    # The best parameters are part of the state, so that checkpoints include them.
    best = {"params": params, "extra": extra, "step": jnp.int32(0), "accuracy": jnp.float32(-1)}
    tx = optax.chain(recipe.tx, cool_down())
    state = train.init_state(params, {"own": extra, "best": best}, tx, rng, {})
    # Commit every leaf to its device, as `copy_to` does, so that the step is compiled only once.
    state = jax.tree.map(lambda leaf: jax.device_put(leaf, leaf.sharding), state)
    return state, train.jit_step(train.make_train_step(loss_fn, tx), state)


def add_linear_head(
    features: Features, variables: Any, x: Any, num_classes: int, rng: Array
) -> tuple[Callable[..., tuple[Array, Any]], dict[str, Any], dict[str, Any]]:
    """Add a zero linear head to a network, and return its score function, params and extra."""
    # The variables may be on the devices of another mesh.
    extra = jax.device_put(dict(jax.device_get(variables)))
    model = extra.pop("params")
    rows, _ = jax.eval_shape(lambda p, e, x: features(p, e, {"x": x}, rng, False), model, extra, x)
    weights = jnp.zeros((rows.shape[-1], num_classes)), jnp.zeros(num_classes)

    def score(params, extra, batch, rng, is_training):
        rows, extra = features(params["model"], extra, batch, rng, is_training)
        weight, bias = params["head"]
        return rows.astype(jnp.float32) @ weight + bias, extra

    return score, {"model": model, "head": weights}, extra


def plan_evaluations(recipe: Recipe) -> tuple[list[int], float]:
    """Return the steps to evaluate at, and the length of the cooldown relative to training."""
    if recipe.accuracy is None:
        return [max(1, recipe.num_steps)], 0.0
    last = max(1, int(recipe.num_steps / (1 + COOLDOWN)))
    return evaluations(recipe.evaluate_every, last), COOLDOWN


def evaluations(first: int, num_steps: int) -> list[int]:
    """Return the steps of evaluations from 0 to `num_steps`, at growing intervals.

    >>> evaluations(50, 1150)[:3], evaluations(50, 1150)[-4:]
    ([0, 50, 100], [1000, 1050, 1102, 1150])
    """
    due = [0]
    while due[-1] < num_steps:
        due.append(min(num_steps, due[-1] + max(1, first, int(GROWTH * due[-1]))))
    return due


class Cooldown(NamedTuple):
    """The update count, and the first and last update of a linear decay to zero."""

    step: Int[Array, ""]
    start: Int[Array, ""]
    end: Int[Array, ""]


def cool_down() -> optax.GradientTransformation:
    """Scale updates linearly to zero from `Cooldown.start` to `Cooldown.end`, once these are set.

    >>> state = cool_down().init(())._replace(start=jnp.int32(0), end=jnp.int32(4))
    >>> for _ in range(3):
    ...     update, state = cool_down().update(8.0, state)
    >>> float(update)
    4.0
    """

    def init(params):
        return Cooldown(jnp.int32(0), jnp.int32(NEVER), jnp.int32(NEVER))

    def update(updates, state, params=None):
        left = (state.end - state.step) / jnp.maximum(state.end - state.start, 1)
        factor = jnp.clip(left, 0.0, 1.0)
        updates = jax.tree.map(lambda one: (factor * one).astype(jnp.result_type(one)), updates)
        return updates, state._replace(step=state.step + 1)

    return optax.GradientTransformation(init, update)


def train_until_best(
    state: train.TrainState,
    advance: Callable[[train.TrainState, int], tuple[train.TrainState, str]],
    measure: Callable[[train.TrainState], float],
    due: Sequence[int],
    cooldown: float,
) -> tuple[train.TrainState, str]:
    """Train with early stopping, then cool down from the best parameters, `state.extra["best"]`.

    advance(state, step) returns the state at a step, and the reason if it stopped before.
    measure(state), which is maximised, is called at the steps `due`, until it has not improved for
    `PATIENCE` calls. `cooldown` is relative to the steps before it. Returns like `advance`.
    """
    while True:
        number, end = int(state.step), int(state.opt_state[-1].end)
        if end == NEVER and number in due:
            state = keep_best(state, measure(state))
            warmup = due[min(NUM_WARMUP_EVALS, len(due) - 1)]
            since = max(int(state.extra["best"]["step"]), warmup)
            waited = sum(since < one <= number for one in due)
            if number == due[-1] or waited >= PATIENCE:
                end = number + int(cooldown * number)
                state = begin_cooldown(state, end) if cooldown else state
        elif number == end:
            state = keep_best(state, measure(state))
        if number == end:
            return state, ""
        following = end if end < NEVER else min(one for one in due if one > number)
        state, reason = advance(state, following)
        if reason:
            return state, reason


def begin_cooldown(state: train.TrainState, end: int) -> train.TrainState:
    """Reset a state to its best parameters, and begin a cooldown that ends at step `end`."""
    best, (*own, last) = state.extra["best"], state.opt_state
    extra = state.extra["own"]
    old = state.params, extra, (last.start, last.end)
    params, extra, (start, end) = copy_to(old, (best["params"], best["extra"], (state.step, end)))
    return state._replace(
        params=params,
        opt_state=(*own, last._replace(start=start, end=end)),
        extra={"own": extra, "best": best},
    )


def keep_best(state: train.TrainState, accuracy: float) -> train.TrainState:
    """Update the best parameters of a state if its current parameters are better."""
    own, old = state.extra["own"], state.extra["best"]
    if not np.float32(accuracy) > old["accuracy"]:  # NaN is not better
        return state
    best = {"params": state.params, "extra": own, "step": state.step, "accuracy": accuracy}
    return state._replace(extra={"own": own, "best": copy_to(old, best)})


def copy_to(old: PyTree, new: PyTree) -> PyTree:
    """Copy `new` to the dtypes and devices of `old`, so that donating the state keeps the copy."""
    return jax.tree.map(lambda a, b: jax.device_put(b, a.sharding), old, _cast(old, new))


@jax.jit  # one program, instead of one per shape
def _cast(old: PyTree, new: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.array(b, a.dtype), old, new)


@contextlib.contextmanager
def open_scratch(
    folder: pathlib.Path | None, settings: Mapping[str, Any], state: train.TrainState
) -> Iterator[tuple[train.Checkpoints | None, train.TrainState, Callable[[], str]]]:
    """Yield the checkpoints of a folder, the newest state or `state`, and `stop`.

    Checkpoints with other settings are deleted. Without a folder, or with several processes, there
    are no checkpoints.
    """
    if folder is None or jax.process_count() > 1:
        yield None, state, lambda: ""
        return
    stamp = folder / "settings.json"
    if folder.exists() and read_object(stamp, []) != settings:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(stamp, dict(settings))
    with (
        train.open_checkpoints(folder / "checkpoints") as checkpoint,
        train.stop_on_signals() as stop,
    ):
        restored = checkpoint.restore(state)
        yield checkpoint, restored[0] if restored else state, stop


def cross_entropy(scores: Float[Array, "*rows c"], labels: Int[Array, "*rows"]) -> Float[Array, ""]:
    """Return the mean of -log softmax(scores)[label] over the labelled rows, in nats.

    Rows with a label below 0 are ignored: they may contain NaN, and their gradient is zero. If no
    row is labelled, the mean is 0.

    >>> f"{cross_entropy(jnp.array([[1.0, 1.0], [jnp.nan, 0.0]]), jnp.array([1, -1])):.4f}"
    '0.6931'
    """
    labelled = labels >= 0
    scores = jnp.where(labelled[..., None], scores.astype(jnp.float32), 0.0)
    nats = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(labels, 0))
    return jnp.sum(jnp.where(labelled, nats, 0.0)) / jnp.maximum(jnp.sum(labelled), 1)
