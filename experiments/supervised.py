"""Supervised rows: the network of a run with a linear softmax on top, trained whole on labels.

For audio the last row of Table 1 of van den Oord et al. (2018), "same architecture".
"""

import contextlib
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from cpc.data import prefetch
from cpc.files import read_object, write_sealed
from cpc.train import (
    Checkpoints,
    TrainState,
    Writer,
    fit,
    init_state,
    jit_step,
    make_train_step,
    open_checkpoints,
    stop_on_signals,
)
from cpc.types import Array, Batch, UserError

#: features(params, extra, batch, rng, train) -> (features (..., f), extra)
Features = Callable[[Any, Any, Batch, Array, bool], tuple[Array, Any]]


def train_on_labels(
    features: Features,
    variables: Any,
    draw: Callable[[int], Batch],
    tx: optax.GradientTransformation,
    *,
    num_classes: int,
    num_steps: int,
    rng: Array,
    log_every: int = 0,
    writers: Sequence[Writer] = (),
    num_threads: int = 0,
    folder: pathlib.Path | None = None,
    save_every: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Callable[[Any], Array]:
    """Train a network and a softmax on its features together, by the loop of every training.

    Minimises `cross_entropy` of features W + b, W and b from zero, on one device.

    Args:
        features: of a batch under "x", one row of features for each label.
        variables: where the network starts: "params", and what else it keeps.
        draw: index of a step -> its batch: "x" and "label", below 0 where there is no label.
        rng: the root of the training's random keys.
        writers: get a record of the loss every `log_every` steps (0: at the last).
        num_threads: that draw batches ahead.
        folder: for checkpoints every `save_every` steps and at a signal, until the last step;
            without it a training that is cut short starts anew. One process alone writes them.
        settings: json of what the training depends on; checkpoints of other settings are deleted.

    Returns:
        answer(x) -> log-probabilities (..., classes) of the trained network, as in evaluation.

    Raises:
        UserError: the loss or a gradient is not finite; a signal stopped the training.
    """
    # Wherever it was trained, it is trained on here.
    extra = jax.tree.map(jnp.asarray, dict(jax.device_get(variables)))
    model = extra.pop("params")
    found, _ = jax.eval_shape(lambda p, e, x: features(p, e, x, rng, False), model, extra, draw(0))
    width = found.shape[-1]
    head = jnp.zeros((width, num_classes)), jnp.zeros(num_classes)

    def score(params, extra, batch, rng, train):
        found, extra = features(params["model"], extra, batch, rng, train)
        weight, bias = params["head"]
        return found.astype(jnp.float32) @ weight + bias, extra

    def loss_fn(params, extra, batch, rng):
        scores, extra = score(params, extra, batch, rng, True)
        return cross_entropy(scores, batch["label"]), (extra, {})

    def batches(first):
        return prefetch(draw, first, num_steps, num_threads=num_threads)

    state = init_state({"model": model, "head": head}, extra, tx, rng, {})
    step = jit_step(make_train_step(loss_fn, tx), state)
    fit_to = functools.partial(fit, num_steps=num_steps, log_every=log_every, writers=writers)
    if folder is None or jax.process_count() > 1:
        state, _ = fit_to(state, step, batches)
    else:
        with resumed(folder, settings or {}, state) as (checkpoint, state, stop):
            state, reason = fit_to(
                state, step, batches, checkpoint=checkpoint, save_every=save_every, stop=stop
            )
        if reason:
            raise UserError(
                f"the training on labels was stopped by {reason} at step {int(state.step):,}: the "
                "same command resumes it"
            )
        shutil.rmtree(folder)

    @jax.jit
    def answer(params, extra, x):
        return jax.nn.log_softmax(score(params, extra, {"x": x}, rng, False)[0])

    return functools.partial(answer, state.params, state.extra)


@contextlib.contextmanager
def resumed(
    folder: pathlib.Path, settings: Mapping[str, Any], state: TrainState
) -> Iterator[tuple[Checkpoints, TrainState, Callable[[], str]]]:
    """The checkpoints of a folder, the newest state among them or else this one, and `stop`."""
    stamp = folder / "settings.json"
    if folder.exists() and read_object(stamp, []) != settings:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(stamp, dict(settings))
    with open_checkpoints(folder / "checkpoints") as checkpoint, stop_on_signals() as stop:
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
