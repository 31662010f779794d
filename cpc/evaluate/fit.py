"""Softmax regression on frozen features, fitted until convergence or for a number of updates."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from cpc.evaluate.convex import (
    SELECTION_TOLERANCE,
    VALIDATION_FRACTION,
    Rows,
    as_probe,
    check_grid,
    compare_l2s,
    solve_path,
)
from cpc.evaluate.probe import (
    Layers,
    Probe,
    Stacked,
    as_stacked,
    check_finite,
    check_labels,
    keep,
    predict,
    read_rows_at,
    score,
    standardisation,
    standardised,
)
from cpc.types import Array, ArrayLike, UserError

#: A function from the learning rate and the number of updates to an optimizer.
MakeOptimizer: TypeAlias = Callable[[float | Array, int], optax.GradientTransformation]

#: Maximum number of updates per call of compiled code.
CALL_UPDATES = 256


class Updates(NamedTuple):
    """A fit's number of updates, batch size and optimizer."""

    num_epochs: int = 10
    """Number of passes over the data, or more if they take fewer than `min_updates` updates."""
    min_updates: int = 1000
    batch_size: int = 1024
    learning_rate: float = 5e-3
    """Initial learning rate; use 0.1 for `paper_sgd`."""
    optimizer: MakeOptimizer | None = None
    """`adam_cosine` or `paper_sgd`. If None, linear probes use L-BFGS and others `adam_cosine`."""


def adam_cosine(learning_rate: float | Array, num_updates: int) -> optax.GradientTransformation:
    """Return Adam with a learning rate that decays to zero along half a cosine."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_updates))


def paper_sgd(learning_rate: float | Array, num_updates: int) -> optax.GradientTransformation:
    """Return SGD with momentum 0.9 and a stepwise learning rate.

    The rate is divided by 10 after 50/85 and 75/85 of the updates. The image probe of the CPC paper
    (section 3.2) uses learning rate 0.1, 85,000 updates, and batches of 2048 rows, one per image.
    """
    steps = {num_updates * 50 // 85: 0.1, num_updates * 75 // 85: 0.1}
    schedule = optax.piecewise_constant_schedule(learning_rate, steps)
    return optax.sgd(schedule, momentum=0.9)


class Frames(NamedTuple):
    """Standardised training frames, with fitting rows first and validation rows last.

    The validation rows are used to choose the weight decay.
    """

    x: Float[Array, "n d"]
    rows: Stacked
    labels: Int[np.ndarray, " rows"]
    num_train: int
    mean: Float[Array, " d"]
    std: Float[Array, " d"]

    def count_correct(self, probe: Probe) -> int:
        """Return the number of validation rows that a probe classifies correctly."""
        held = self.rows._replace(first=self.rows.first[self.num_train :])
        return int(np.sum(predict(probe, held).argmax(axis=1) == self.labels[self.num_train :]))


def fit_probe(
    features: Float[ArrayLike, "n d"] | Stacked,
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
    *,
    hidden_width: int = 0,
    **options: Any,
) -> Probe:
    """Fit one probe to training frames; see `fit_probes` for the options."""
    return fit_probes(features, labels, utterances, hidden_widths=(hidden_width,), **options)[0]


def fit_probes(
    features: Float[ArrayLike, "n d"] | Stacked,
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    hidden_widths: Sequence[int] = (0,),
    weight_decays: Sequence[float | int] = (1e-5, 1e-4, 1e-3),
    seed: int = 0,
    updates: Updates = Updates(),
) -> list[Probe]:
    """Fit probes to training frames, one per hidden width.

    Minimises the mean of -log p(label | features) + `(weight_decay / 2) |W|^2`. A linear probe is
    fitted by L-BFGS until it converges (see `fit_lbfgs_probe`). A probe with a hidden layer has no
    unique optimum and is fitted by a number of Adam updates with cosine decay.

    A tenth of the training utterances is held out to choose the weight decay with the most correct
    frames. For this comparison, linear probes are fitted on at most 65,536 frames (`compare_l2s`)
    and hidden layers with a third of the updates. The best probe is refitted on all utterances.

    Args:
        features: features of all training frames. Each frame is put on the device only once, even
            if `Stacked` rows overlap.
        labels: classes from 0 to num_classes - 1. Frames with -1 are ignored.
        utterances: utterance number of each frame. The validation split never divides an utterance.
            For images with one row each, pass `np.arange(n)`.
        hidden_widths: width of the hidden ReLU layer of each probe, or 0 for a linear probe.
        weight_decays: the values to compare. If there is only one, no utterances are held out.
        updates: settings for hidden layers. Linear probes also use them if an optimizer is set.
    """
    check_labels(labels, num_classes)
    rng = np.random.default_rng(seed)
    fraction = VALIDATION_FRACTION if len(weight_decays) > 1 else 0.0
    train, validation = split_utterances(labels, utterances, fraction, rng)
    chosen = np.concatenate([train, validation])
    rows, y = keep(as_stacked(features), chosen), labels[chosen].astype(np.int32)
    x = jnp.asarray(rows.frames, jnp.float32)
    # Statistics are computed over the middle frame of each row, as neighbours can occur twice.
    scale = standardisation(x if rows.num == 1 else x[rows.first + rows.num // 2])
    check_finite(*scale)
    mean, std = (jnp.tile(of_frame, rows.num) for of_frame in scale)
    x = standardised(x, *scale)
    frames = Frames(x, rows, y, len(train), mean, std)

    def fit(hidden_width: int) -> Probe:
        if updates.optimizer is None and not hidden_width:
            return fit_to_convergence(frames, num_classes, weight_decays)
        return choose_by_updates(frames, num_classes, hidden_width, weight_decays, seed, updates)

    # Fits run in parallel, because products this small leave a core for another fit to use.
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(fit, hidden_widths))


def fit_to_convergence(
    frames: Frames, num_classes: int, weight_decays: Sequence[float | int]
) -> Probe:
    """Fit a linear probe to convergence, with the weight decay that is best on validation rows.

    The final fit, on all rows, starts at the optimum on fewer rows, because the two are close.
    """
    check_grid(weight_decays)
    x, rows, y, num_train, mean, std = frames
    whole, start = Rows(x, rows.first, y, rows.num), None
    if num_train < len(y):
        kept = np.arange(num_train)
        found = list(compare_l2s(whole, kept, num_classes, weight_decays, SELECTION_TOLERANCE))
        correct = [frames.count_correct(as_probe(one, mean, std)) for _, one in found]
        chosen, start = found[int(np.argmax(correct))]
        weight_decays = [chosen]
    (solution,) = solve_path(whole, num_classes, weight_decays, start)
    return as_probe(solution, mean, std)


def choose_by_updates(
    frames: Frames,
    num_classes: int,
    hidden_width: int,
    weight_decays: Sequence[float | int],
    seed: int,
    updates: Updates,
) -> Probe:
    """Fit a probe by updates, with the weight decay that is best on validation rows."""
    sizes, best = (len(frames.mean), hidden_width, num_classes), 0
    if frames.num_train < len(frames.labels):
        fitted = fit_by_updates(
            frames, frames.num_train, sizes, weight_decays, seed, 1 / 3, updates
        )
        best = int(np.argmax([frames.count_correct(probe) for probe in fitted]))
    chosen = weight_decays[best : best + 1]
    return fit_by_updates(frames, len(frames.labels), sizes, chosen, seed, 1, updates)[0]


def fit_by_updates(
    frames: Frames,
    num_rows: int,
    sizes: tuple[int, int, int],
    weight_decays: Sequence[float | int],
    seed: int,
    share: float | int,
    updates: Updates,
) -> list[Probe]:
    """Fit one probe per weight decay to the first `num_rows`, with a `share` of the updates."""
    draw = np.random.default_rng([seed, num_rows])
    layers = initial_layers(draw, *sizes)
    size, optimizer = min(updates.batch_size, num_rows), updates.optimizer or adam_cosine
    in_epochs = updates.num_epochs * (num_rows // size)
    num_updates = math.ceil(share * max(in_epochs, updates.min_updates))
    num_calls = -(-num_updates // CALL_UPDATES)
    per_call = -(-num_updates // num_calls)
    num_updates = num_calls * per_call
    of_each = jax.tree.map(lambda w: np.stack([w] * len(weight_decays)), layers)
    static = {"num_updates": num_updates, "optimizer": optimizer}
    params, state = begin_fit(of_each, updates.learning_rate, **static)
    decays = np.array(weight_decays, np.float32)
    step = functools.partial(fit_layers, **static)
    for drawn in itertools.islice(draw_rows(num_rows, per_call, size, draw), num_calls):
        first, y = frames.rows.first[drawn], frames.labels[drawn]
        params, state = step(params, state, frames.x, first, y, decays, updates.learning_rate)
    probes = []
    for number, decay in enumerate(weight_decays):
        layers = jax.tree.map(lambda w, i=number: jnp.asarray(np.asarray(w)[i]), params)
        probes.append(Probe(layers, frames.mean, frames.std, float(decay)))
    return probes


def split_utterances(
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
    validation_fraction: float,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " validation"]]:
    """Split the labelled rows into training and validation rows, without dividing utterances."""
    labelled = np.flatnonzero(labels >= 0)
    if validation_fraction == 0:
        return labelled, labelled[:0]
    names = np.unique(utterances[labelled])
    if len(names) < 2:
        raise UserError(
            "a probe needs two labelled training utterances to choose a weight decay: add "
            "utterances, or pass a single weight decay"
        )
    num_held = min(len(names) - 1, max(1, round(validation_fraction * len(names))))
    held = rng.choice(names, num_held, replace=False)
    is_held = np.isin(utterances[labelled], held)
    return labelled[~is_held], labelled[is_held]


@functools.partial(jax.jit, static_argnames=("num_updates", "optimizer"))
def begin_fit(
    layers: Layers, learning_rate: float | Array, *, num_updates: int, optimizer: MakeOptimizer
) -> tuple[Layers, Any]:
    """Put layers on the device and initialise the optimizer, in one compiled program."""
    return layers, optimizer(learning_rate, num_updates).init(layers)


@functools.partial(
    jax.jit, static_argnames=("num_updates", "optimizer"), donate_argnames=("params", "state")
)
def fit_layers(
    params: Layers,
    state: Any,
    x: Float[Array, "n d"],
    first: Int[ArrayLike, "updates batch"],
    y: Int[ArrayLike, "updates batch"],
    weight_decays: Float[ArrayLike, " g"],
    learning_rate: float | Array,
    *,
    num_updates: int,
    optimizer: MakeOptimizer,
) -> tuple[Layers, Any]:
    """Apply some of `num_updates` updates to layers with one leading entry per weight decay.

    `first` is the index of each row's first frame. The number of frames per row follows from the
    width of the layers.
    """

    def loss(params: Layers, weight_decay: Array, x: Array, y: Array) -> Array:
        nats = optax.softmax_cross_entropy_with_integer_labels(score(params, x), y).mean()
        return nats + weight_decay / 2 * sum(jnp.sum(weight**2) for weight, _ in params)

    gradients = jax.vmap(jax.grad(loss), (0, 0, None, None))
    transform = optimizer(learning_rate, num_updates)
    num = params[0][0].shape[1] // x.shape[1]

    def gradient(params, batch):
        first, y = batch
        return gradients(params, weight_decays, read_rows_at(x, first, num), y)

    return run_updates(transform, gradient, (params, state), (first, y))


def run_updates(
    transform: optax.GradientTransformation,
    gradient: Callable[[Any, Any], Any],
    start: tuple[Any, Any],
    batches: Any,
) -> tuple[Any, Any]:
    """Return the parameters and the optimizer state after one update per batch."""

    def step(carry, batch):
        params, state = carry
        updates, state = transform.update(gradient(params, batch), state)
        return (jax.tree.map(jnp.add, params, updates), state), None

    return jax.lax.scan(step, start, batches)[0]


def draw_rows(
    num_rows: int, per_call: int, batch_size: int, rng: np.random.Generator
) -> Iterator[Int[np.ndarray, "updates batch"]]:
    """Yield the row numbers of batches forever, drawing a new random order for each pass."""
    left = np.zeros(0, np.int64)
    while True:
        while len(left) < per_call * batch_size:
            left = np.concatenate([left, rng.permutation(num_rows)])
        yield left[: per_call * batch_size].reshape(per_call, batch_size)
        left = left[per_call * batch_size :]


def initial_layers(
    rng: np.random.Generator, width: int, hidden_width: int, num_classes: int
) -> Layers:
    """Return initial layers: zeros for the last one, and He initialization for a hidden one."""
    last = np.zeros((hidden_width or width, num_classes), np.float32)
    layers = ((last, np.zeros(num_classes, np.float32)),)
    if hidden_width:
        weight = rng.standard_normal((width, hidden_width)) * np.sqrt(2 / width)
        layers = ((weight.astype(np.float32), np.zeros(hidden_width, np.float32)), *layers)
    return layers
