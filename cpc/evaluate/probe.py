"""Softmax regression on frozen features, fitted on the device over all training frames."""

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

from cpc.evaluate.stacked import Stacked, as_stacked, keep, read_rows
from cpc.types import Array, ArrayLike, UserError

#: (weight, bias) of each layer: one for a linear probe, two with a hidden layer.
Layers: TypeAlias = tuple[tuple[ArrayLike, ArrayLike], ...]

#: make(learning rate, number of updates).
MakeOptimizer: TypeAlias = Callable[[float | Array, int], optax.GradientTransformation]

#: At most so many updates of a fit are one call of compiled code, with the rows that they read.
CALL_UPDATES = 256
CHUNK_FRAMES = 8192
CHUNK_VALUES = 2**27  # half a GiB: pixels of large images are wider than any features


class Probe(NamedTuple):
    """A fitted probe: layers over standardised features."""

    params: Layers
    mean: Array
    """Of the training features (d,)."""
    std: Array
    """Of the training features (d,); 1 where they are constant."""
    weight_decay: float | int
    """The chosen one."""


def adam_cosine(learning_rate: float | Array, num_updates: int) -> optax.GradientTransformation:
    """Adam, its rate falling to zero along half a cosine."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_updates))


def paper_sgd(learning_rate: float | Array, num_updates: int) -> optax.GradientTransformation:
    """Momentum 0.9, the rate divided by 10 after 50/85 and again after 75/85 of the updates.

    The paper's probe of images (section 3.2) is this with learning rate 0.1, 85,000 updates and
    batches of 2048; one row of features an image.
    """
    steps = {num_updates * 50 // 85: 0.1, num_updates * 75 // 85: 0.1}
    schedule = optax.piecewise_constant_schedule(learning_rate, steps)
    return optax.sgd(schedule, momentum=0.9)


def fit_probe(
    features: Float[ArrayLike, "n d"] | Stacked,
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    hidden_width: int = 0,
    **options: Any,
) -> Probe:
    """Fit a probe to training frames: one of `fit_probes`, whose options these are."""
    widths = (hidden_width,)
    return fit_probes(
        features, labels, utterances, num_classes=num_classes, hidden_widths=widths, **options
    )[0]


def fit_probes(
    features: Float[ArrayLike, "n d"] | Stacked,
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    hidden_widths: Sequence[int] = (0,),
    weight_decays: Sequence[float | int] = (1e-5, 1e-4, 1e-3),
    validation_fraction: float = 0.1,
    num_epochs: int = 10,
    min_updates: int = 1000,
    batch_size: int = 1024,
    learning_rate: float = 5e-3,
    optimizer: MakeOptimizer = adam_cosine,
    seed: int = 0,
) -> list[Probe]:
    """Fit probes to training frames, one for each hidden width; the test set has no way in.

    Minimises the mean of -log p(label | features) + `(weight_decay / 2) |W|^2` by Adam with cosine
    decay, or another optimizer. All weight decays are fitted at once, with a third of the updates,
    on the training utterances without a share of `validation_fraction`; the one with the most
    correct frames of that share is taken, and the probe is fitted with it on all training
    utterances.

    Args:
        features: of all training frames; put on the device once. Of `Stacked` frames a row is
            laid side by side only when it is read.
        labels: 0 .. num_classes - 1; frames with -1 are ignored.
        utterances: the utterance of each frame; the validation split never divides one. Of
            images with one row each, `np.arange(n)`.
        hidden_widths: 0 for a linear probe, else one hidden layer of ReLUs.
        num_epochs: passes over the data; the fit goes on until there are `min_updates` updates.
        optimizer: `adam_cosine`, or `paper_sgd` with learning rate 0.1.
        weight_decays: the grid; with one entry nothing is set aside for validation.

    Raises:
        UserError: labels out of range, fewer than two classes, features that are not finite, or a
            single utterance where a validation split is needed.
    """
    check_labels(labels, num_classes)
    rng = np.random.default_rng(seed)
    train, validation = split_utterances(
        labels, utterances, validation_fraction if len(weight_decays) > 1 else 0.0, rng
    )
    chosen = np.concatenate([train, validation])
    rows, y = keep(as_stacked(features), chosen), labels[chosen].astype(np.int32)
    held = rows._replace(first=rows.first[len(train) :])
    x = jnp.asarray(rows.frames, jnp.float32)
    # A frame and its neighbours are of one kind, and some of these are there twice.
    scale = standardisation(x if rows.num == 1 else x[rows.first + rows.num // 2])
    check_finite(*scale)
    mean, std = (jnp.tile(of_frame, rows.num) for of_frame in scale)
    x = standardised(x, *scale)  # once, and not row by row of each batch

    def fit(
        hidden_width: int, num_rows: int, weight_decays: Sequence[float | int], share: float | int
    ) -> list[Probe]:
        """A probe for each weight decay, of the first rows, by a share of the updates."""
        size = min(batch_size, num_rows)
        num_updates = math.ceil(share * max(num_epochs * (num_rows // size), min_updates))
        num_calls = -(-num_updates // CALL_UPDATES)
        per_call = -(-num_updates // num_calls)
        make = functools.partial(fit_layers, optimizer=optimizer, num_updates=num_calls * per_call)
        draw = np.random.default_rng([seed, num_rows])
        layers = initial_layers(draw, len(mean), hidden_width, num_classes)
        of_each = jax.tree.map(lambda w: np.stack([w] * len(weight_decays)), layers)
        params, state = begin_fit(
            of_each, learning_rate, num_updates=num_calls * per_call, optimizer=optimizer
        )
        penalty = np.array(weight_decays, np.float32), learning_rate
        for drawn in itertools.islice(draw_rows(num_rows, per_call, size, draw), num_calls):
            params, state = make(params, state, x, rows.first[drawn], y[drawn], *penalty)
        return [Probe(take(params, g), mean, std, float(l2)) for g, l2 in enumerate(weight_decays)]

    def choose(hidden_width: int) -> Probe:
        """The probe with the weight decay that is best on what is set aside."""
        best = 0
        if len(validation):
            fitted = fit(hidden_width, len(train), weight_decays, 1 / 3)
            answers = [predict(probe, held).argmax(axis=1) for probe in fitted]
            best = int(np.argmax([np.sum(answer == y[len(train) :]) for answer in answers]))
        return fit(hidden_width, len(chosen), weight_decays[best : best + 1], 1)[0]

    # Side by side: products this small leave a core to another fit, or to its compilation.
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(choose, hidden_widths))


def predict(probe: Probe, features: Float[ArrayLike, "n d"] | Stacked) -> Float[np.ndarray, "n c"]:
    """Log-probabilities of the classes, on the host, in chunks of one compiled shape.

    Raises:
        UserError: features are not finite.
    """
    chunks, (num_rows, width) = [], features.shape
    whole = 2 ** max(0, num_rows - 1).bit_length()
    rows = max(1, min(CHUNK_FRAMES, whole, CHUNK_VALUES // width))
    for start in range(0, num_rows, rows):
        chunk = read_rows(features, start, start + rows)
        check_finite(chunk)
        padding = ((0, rows - len(chunk)), (0, 0))
        chunks.append(np.asarray(log_probabilities(probe, np.pad(chunk, padding)))[: len(chunk)])
    if not chunks:
        return np.zeros((0, probe.params[-1][1].shape[0]), np.float32)
    return np.concatenate(chunks)


@jax.jit
def log_probabilities(probe: Probe, features: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """Of the classes: log softmax of the scores."""
    x = (features.astype(jnp.float32) - probe.mean) / probe.std
    return jax.nn.log_softmax(score(probe.params, x))


def score(params: Layers, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """Scores before the softmax, ReLU between layers."""
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


@functools.partial(jax.jit, static_argnames=("num_updates", "optimizer"))
def begin_fit(
    layers: Layers, learning_rate: float | Array, *, num_updates: int, optimizer: MakeOptimizer
) -> tuple[Layers, Any]:
    """Layers on the device, and the optimizer's state: one program, and not one for each shape."""
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
    """Layers, with a leading axis of weight decays, and optimizer state after some of the updates.

    Args:
        state: of the optimizer.
        x: standardised frames; `first` says which of them each row of each batch begins with, and
            the layers' width how many of them it holds.
        num_updates: of the whole fit.
    """

    def loss(params: Layers, weight_decay: Array, x: Array, y: Array) -> Array:
        nats = optax.softmax_cross_entropy_with_integer_labels(score(params, x), y).mean()
        return nats + weight_decay / 2 * sum(jnp.sum(weight**2) for weight, _ in params)

    gradients = jax.vmap(jax.grad(loss), (0, 0, None, None))
    transform = optimizer(learning_rate, num_updates)
    num = params[0][0].shape[1] // x.shape[1]
    of_rows = jax.vmap(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, num), (None, 0))

    def step(carry, batch):
        params, state = carry
        first, y = batch
        # Slices: a row of 17 frames that is gathered one by one takes as long as its products.
        rows = of_rows(x, first).reshape(len(first), -1)
        updates, state = transform.update(gradients(params, weight_decays, rows, y), state)
        return (jax.tree.map(jnp.add, params, updates), state), None

    return jax.lax.scan(step, (params, state), (first, y))[0]


def draw_rows(
    num_rows: int, per_call: int, batch_size: int, rng: np.random.Generator
) -> Iterator[Int[np.ndarray, "updates batch"]]:
    """Rows of batches without end, each as often as any other: one order of all after the other."""
    left = np.zeros(0, np.int64)
    while True:
        while len(left) < per_call * batch_size:
            left = np.concatenate([left, rng.permutation(num_rows)])
        yield left[: per_call * batch_size].reshape(per_call, batch_size)
        left = left[per_call * batch_size :]


def initial_layers(
    rng: np.random.Generator, width: int, hidden_width: int, num_classes: int
) -> Layers:
    """Zeros at the output, where symmetry does no harm; He's normal numbers before a ReLU."""
    last = np.zeros((hidden_width or width, num_classes), np.float32)
    layers = ((last, np.zeros(num_classes, np.float32)),)
    if hidden_width:
        weight = rng.standard_normal((width, hidden_width)) * np.sqrt(2 / width)
        layers = ((weight.astype(np.float32), np.zeros(hidden_width, np.float32)), *layers)
    return layers


@jax.jit
def standardisation(x: Float[Array, "n d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Mean and standard deviation of each dimension; 1 for a constant one."""
    mean = x.mean(axis=0)
    std = jnp.sqrt(jnp.mean(jnp.square(x - mean), axis=0))
    return mean, jnp.where(std > 1e-6 * jnp.abs(mean), std, 1.0)


def check_finite(*features: Float[ArrayLike, "..."]) -> None:
    """Refuse features of which some are not numbers: each answer would be the first class."""
    for one in features:
        bad = ~np.isfinite(np.asarray(one))
        if bad.any():
            at = np.argwhere(bad)[0][-1]
            raise UserError(
                f"feature {at} of {bad.shape[-1]} is not a finite number in what is probed: the "
                "network diverged, or its input holds such values"
            )


@jax.jit
def standardised(
    x: Float[Array, "n d"], mean: Float[Array, " d"], std: Float[Array, " d"]
) -> Float[Array, "n d"]:
    """Frames whose dimensions have mean 0 and standard deviation 1."""
    return (x - mean) / std


def take(params: Layers, index: int) -> Layers:
    """The layers of one weight decay."""
    return jax.tree.map(lambda w: jnp.asarray(np.asarray(w)[index]), params)


def split_utterances(
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
    validation_fraction: float,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " validation"]]:
    """Labelled rows of the training utterances, and of those set aside for validation."""
    labelled = np.flatnonzero(labels >= 0)
    if validation_fraction == 0:
        return labelled, labelled[:0]
    names = np.unique(utterances[labelled])
    if len(names) < 2:
        raise UserError(
            "a probe that chooses its weight decay needs at least two labelled training "
            "utterances, one of them for validation; give it more data or a single weight decay"
        )
    num_held = min(len(names) - 1, max(1, round(validation_fraction * len(names))))
    held = rng.choice(names, num_held, replace=False)
    is_held = np.isin(utterances[labelled], held)
    return labelled[~is_held], labelled[is_held]


def check_labels(labels: Int[np.ndarray, " n"], num_classes: int) -> None:
    """Raise a UserError for labels that no probe can be fitted to."""
    if len(labels) and (labels.max() >= num_classes or labels.min() < -1):
        raise UserError(
            f"the labels of a probe with {num_classes} classes must lie in 0..{num_classes - 1} "
            f"(-1: unlabelled), but reach from {labels.min()} to {labels.max()}; check the labels"
        )
    if len(np.unique(labels[labels >= 0])) < 2:
        raise UserError(
            "a probe needs at least two classes among its training labels; "
            "data of one speaker or one class have nothing to tell apart, so choose another task "
            "or more data"
        )
