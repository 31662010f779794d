"""Supervised rows: the network of a run with a linear softmax on top, trained whole on labels.

For audio the last row of Table 1 of van den Oord et al. (2018), "same architecture".
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
#: loss(scores (..., classes), batch) -> what is minimised
Loss: TypeAlias = Callable[[Array, Batch], Array]

#: So many of the labels that may be trained on are held out, for the training to stop by.
HELD_OUT_FRACTION = 0.1
#: Each evaluation comes this part of the steps so far after the one before, where that is more
#: than the first took; so many in a row that are no better than the best end a training.
GROWTH, PATIENCE = 0.05, 6
#: So many first evaluations are not among these: the rate may be rising in all of them.
RISING = 4
#: The rate then falls to zero from the best, over this part of the steps so far, as in the
#: warm-up, stable and decay of Hu et al. (2024) and Hägele et al. (2024).
COOLDOWN = 0.2
#: The end of a cooldown that has not begun.
NEVER = np.iinfo(np.int32).max
#: What is said of a training that its steps ended, and not the evaluations.
AT_LIMIT = ", the most"


def hold_out(rows: Sequence[int] | np.ndarray, seed: int) -> np.ndarray:
    """Return those of some rows that are held out, ascending: a seeded tenth, at least one.

    >>> len(hold_out(range(20), seed=0)), len(hold_out([7], seed=0))
    (2, 1)
    """
    number = max(1, round(HELD_OUT_FRACTION * len(rows)))
    return np.sort(np.random.default_rng(seed).choice(rows, number, replace=False))


def make_own_optimizer(
    config: Config,
    num_steps: int,
    layer_decay: float,
    parts: Sequence[str],
    schedule: str = "constant",
) -> optax.GradientTransformation:
    """Return the run's own optimizer, whose rate falls from layer to layer down the `parts`."""
    optim = config.optim
    tx, _ = optimizer_of(
        config,
        num_steps=num_steps,
        warmup_steps=min(optim.warmup_steps, num_steps // 10),  # few labels: few steps
        schedule=schedule,
        # schedule_free would have to be evaluated by its average.
        name="adam" if optim.name == "schedule_free" else optim.name,
    )
    return optax.chain(tx, train.scale_by_layer(layer_decay, parts))


class Recipe(NamedTuple):
    """How a network is trained on labels."""

    tx: optax.GradientTransformation
    num_steps: int
    """With `accuracy` at most."""
    evaluate_every: int
    """Steps to the first evaluation; later ones lie further apart (`GROWTH`)."""
    accuracy: Callable[[Answer], float] | None = None
    """Of an answer, on labels that are held out of the training and of the test."""
    loss: Loss = lambda scores, batch: cross_entropy(scores, batch["label"])
    """Of the scores and their batch; labels below 0 count as none."""


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
    """Train a network and a softmax on its features, scores features W + b with W and b from zero.

    If the recipe has an accuracy, training ends when that rises no more; the rate then falls to
    zero from where it was highest, and the best parameters count.

    Args:
        features: of a batch under "x", one row of features for each label.
        variables: where the network starts: "params", and what else it keeps.
        draw: index of a step -> its batch: "x" and what the loss asks for.
        folder: for checkpoints, from which the same call resumes, or answers at once.
        settings: json of what the training depends on besides the config; checkpoints of other
            settings are deleted.

    Returns:
        The answer of the trained network, as in evaluation, and in words how long it was trained.
    """
    score, params, extra = put_head(features, variables, draw(0)["x"], num_classes, rng)
    state, step = make_step(score, params, extra, recipe, rng)
    due, cooldown = plan_evaluations(recipe)
    cadence = train.Cadence(config.log_every, save_every=config.save_every)

    @jax.jit
    def answer(params, extra, x):
        return jax.nn.log_softmax(score(params, extra, {"x": x}, rng, False)[0])

    def measure(state: train.TrainState) -> float:
        """How good its parameters are; where nothing says so, the later the better."""
        number = int(state.step)
        if recipe.accuracy is None:
            return number
        found = float(recipe.accuracy(functools.partial(answer, state.params, state.extra["own"])))
        for writer in writers:
            writer.write({"step": number, "split": "held-out", "accuracy": found})
        return found

    # Whatever decides when it ends is among the settings, too.
    length = {"due": due, "patience": [RISING, PATIENCE], "cooldown": cooldown}
    settings = {"config": plain(config), **(settings or {}), **length}
    with resumed(folder, settings, state) as (checkpoint, state, stop):

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
        raise train.Stopped(
            f"the training on labels was stopped by {reason} at step {number:,}: the same command "
            "resumes it"
        )
    words = f"best at step {int(best['step']):,} of {number:,}"
    at_limit = AT_LIMIT if number == due[-1] + int(cooldown * due[-1]) else ""
    return functools.partial(answer, best["params"], best["extra"]), words + at_limit


def make_step(
    score: Callable[..., tuple[Array, Any]], params: Any, extra: Any, recipe: Recipe, rng: Array
) -> tuple[train.TrainState, Callable[[train.TrainState, Batch], train.TrainState]]:
    """Return the state before the first step, and the compiled step."""

    def loss_fn(params, extra, batch, rng):
        scores, own = score(params, extra["own"], batch, rng, True)
        return recipe.loss(scores, batch), ({**extra, "own": own}, {})

    # The best so far is part of the state, so that a checkpoint holds all that an end depends on.
    best = {"params": params, "extra": extra, "step": jnp.int32(0), "accuracy": jnp.float32(-1)}
    tx = optax.chain(recipe.tx, cool_down())
    state = train.init_state(params, {"own": extra, "best": best}, tx, rng, {})
    # Every leaf is committed to its device, as copies are, or the step would be compiled twice.
    state = jax.tree.map(lambda leaf: jax.device_put(leaf, leaf.sharding), state)
    return state, train.jit_step(train.make_train_step(loss_fn, tx), state)


def put_head(
    features: Features, variables: Any, x: Any, num_classes: int, rng: Array
) -> tuple[Callable[..., tuple[Array, Any]], dict[str, Any], dict[str, Any]]:
    """Return score, params and extra of a network with a linear layer, from zero, on top."""
    # Wherever it was trained, it is trained on here.
    extra = jax.device_put(dict(jax.device_get(variables)))
    model = extra.pop("params")
    found, _ = jax.eval_shape(lambda p, e, x: features(p, e, {"x": x}, rng, False), model, extra, x)
    weights = jnp.zeros((found.shape[-1], num_classes)), jnp.zeros(num_classes)

    def score(params, extra, batch, rng, is_training):
        found, extra = features(params["model"], extra, batch, rng, is_training)
        weight, bias = params["head"]
        return found.astype(jnp.float32) @ weight + bias, extra

    return score, {"model": model, "head": weights}, extra


def plan_evaluations(recipe: Recipe) -> tuple[list[int], float]:
    """Return the steps that a training is evaluated at, and the part that a cooldown adds."""
    if recipe.accuracy is None:
        return [max(1, recipe.num_steps)], 0.0
    last = max(1, int(recipe.num_steps / (1 + COOLDOWN)))
    return evaluations(recipe.evaluate_every, last), COOLDOWN


def evaluations(first: int, num_steps: int) -> list[int]:
    """Return the steps of a training's evaluations, ever further apart: 0 to `num_steps`.

    >>> evaluations(50, 1150)[:3], evaluations(50, 1150)[-4:]
    ([0, 50, 100], [1000, 1050, 1102, 1150])
    """
    due = [0]
    while due[-1] < num_steps:
        due.append(min(num_steps, due[-1] + max(1, first, int(GROWTH * due[-1]))))
    return due


class Cooldown(NamedTuple):
    """Updates made, and between which of them their size falls to zero."""

    step: Int[Array, ""]
    start: Int[Array, ""]
    end: Int[Array, ""]


def cool_down() -> optax.GradientTransformation:
    """Leave updates as they are until `Cooldown.start` is set; then let them fall to zero.

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
    """Return the last state, the best kept in it, and why it ended before it was done, or "".

    The state is measured at steps that are due, until `PATIENCE` in a row are no better, and once
    more when the rate has fallen to zero. `advance` trains it to a step, or returns why not.
    """
    while True:
        number, end = int(state.step), int(state.opt_state[-1].end)
        if end == NEVER and number in due:
            state = keep_best(state, measure(state))
            since = max(int(state.extra["best"]["step"]), due[min(RISING, len(due) - 1)])
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
    """Return the state with the best parameters so far, from which updates fall to zero."""
    best, (*own, last) = state.extra["best"], state.opt_state
    extra = state.extra["own"]
    old = state.params, extra, (last.start, last.end)
    params, extra, (start, end) = copy_like(old, (best["params"], best["extra"], (state.step, end)))
    return state._replace(
        params=params,
        opt_state=(*own, last._replace(start=start, end=end)),
        extra={"own": extra, "best": best},
    )


def keep_best(state: train.TrainState, found: float) -> train.TrainState:
    """Return the state, with its own parameters for the best if they are better than those."""
    own, former = state.extra["own"], state.extra["best"]
    if not np.float32(found) > former["accuracy"]:  # NaN is not better
        return state
    best = {"params": state.params, "extra": own, "step": state.step, "accuracy": found}
    return state._replace(extra={"own": own, "best": copy_like(former, best)})


def copy_like(old: PyTree, new: PyTree) -> PyTree:
    """Copy a tree to the types and devices of another: the next step donates its state."""
    return jax.tree.map(lambda one, made: jax.device_put(made, one.sharding), old, _copy(old, new))


@jax.jit
def _copy(old: PyTree, new: PyTree) -> PyTree:
    """Copy a tree in one program: leaf by leaf, each shape would be compiled by itself."""
    return jax.tree.map(lambda one, given: jnp.array(given, one.dtype), old, new)


@contextlib.contextmanager
def resumed(
    folder: pathlib.Path | None, settings: Mapping[str, Any], state: train.TrainState
) -> Iterator[tuple[train.Checkpoints | None, train.TrainState, Callable[[], str]]]:
    """The checkpoints of a folder, the newest state among them or else this one, and `stop`."""
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
    """Mean of -log softmax(scores)[label] over the rows with a label, in nats; 0 if there is none.

    Rows whose label is below 0 do not count: they may hold NaN, and their gradient is zero.

    >>> f"{cross_entropy(jnp.array([[1.0, 1.0], [jnp.nan, 0.0]]), jnp.array([1, -1])):.4f}"
    '0.6931'
    """
    labelled = labels >= 0
    scores = jnp.where(labelled[..., None], scores.astype(jnp.float32), 0.0)
    nats = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.maximum(labels, 0))
    return jnp.sum(jnp.where(labelled, nats, 0.0)) / jnp.maximum(jnp.sum(labelled), 1)
