"""Softmax regression on frozen features, fitted on the device over all training frames."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from cpc.types import Array, ArrayLike, UserError

#: (weight, bias) of each layer: one for a linear probe, two with a hidden layer.
Layers: TypeAlias = tuple[tuple[Array, Array], ...]

#: make(learning rate, number of updates).
MakeOptimizer: TypeAlias = Callable[[float | Array, int], optax.GradientTransformation]

CHUNK_FRAMES = 65_536
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
    features: Float[ArrayLike, "n d"],
    labels: Int[np.ndarray, " n"],
    utterances: Int[np.ndarray, " n"],
    *,
    num_classes: int,
    hidden_width: int = 0,
    weight_decays: Sequence[float | int] = (1e-5, 1e-4, 1e-3),
    validation_fraction: float = 0.1,
    num_epochs: int = 10,
    min_updates: int = 1000,
    batch_size: int = 1024,
    learning_rate: float = 5e-3,
    optimizer: MakeOptimizer = adam_cosine,
    seed: int = 0,
) -> Probe:
    """Fit a probe to training frames; the test set has no way in.

    Minimises the mean of -log p(label | features) + (weight_decay / 2) |W|^2 by Adam with cosine
    decay, or another optimizer. All weight decays are fitted at once on the training utterances
    without a share of `validation_fraction`, the one with the most correct validation frames is
    taken, and the probe is refitted with it on all training utterances.

    Args:
        features: of all training frames; put on the device once.
        labels: 0 .. num_classes - 1; frames with -1 are ignored.
        utterances: the utterance of each frame; the validation split never divides one. Of
            images with one row each, `np.arange(n)`.
        hidden_width: 0 for a linear probe, else one hidden layer of ReLUs.
        num_epochs: passes over the data; as many more as make `min_updates` updates.
        optimizer: `adam_cosine`, or `paper_sgd` with learning rate 0.1.
        weight_decays: the grid; with one entry nothing is set aside for validation.

    Raises:
        UserError: labels out of range, fewer than two classes, or a single utterance where a
            validation split is needed.
    """
    check_labels(labels, num_classes)
    rng = np.random.default_rng(seed)
    train, validation = split_utterances(
        labels, utterances, validation_fraction if len(weight_decays) > 1 else 0.0, rng
    )
    order = np.concatenate([rng.permutation(train), rng.permutation(validation)])
    x, y = jnp.asarray(np.asarray(features)[order], jnp.float32), jnp.asarray(labels[order])
    mean, std = standardisation(x)
    fit = functools.partial(
        fit_layers,
        num_classes=num_classes,
        hidden_width=hidden_width,
        num_epochs=num_epochs,
        min_updates=min_updates,
        batch_size=batch_size,
        optimizer=optimizer,
    )

    key, decays, best = jax.random.key(seed), jnp.array(weight_decays, jnp.float32), 0
    if len(validation):
        grid = fit(x, y, mean, std, decays, learning_rate, key, len(train))
        held_x, held_y = x[len(train) :], labels[order[len(train) :]]
        probes = [Probe(take(grid, g), mean, std, decay) for g, decay in enumerate(weight_decays)]
        correct = [np.mean(predict(probe, held_x).argmax(axis=1) == held_y) for probe in probes]
        best = int(np.argmax(correct))
    params = fit(x, y, mean, std, decays[best : best + 1], learning_rate, key, len(order))
    return Probe(take(params, 0), mean, std, float(weight_decays[best]))


def predict(probe: Probe, features: Float[ArrayLike, "n d"]) -> Float[np.ndarray, "n c"]:
    """Log-probabilities of the classes, on the host, in chunks of one compiled shape."""
    chunks = []
    whole = 2 ** max(0, len(features) - 1).bit_length()
    rows = max(1, min(CHUNK_FRAMES, whole, CHUNK_VALUES // features.shape[1]))
    for start in range(0, len(features), rows):
        chunk = jnp.asarray(features[start : start + rows])
        padding = ((0, rows - len(chunk)), (0, 0))
        chunks.append(np.asarray(log_probabilities(probe, jnp.pad(chunk, padding)))[: len(chunk)])
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


@functools.partial(
    jax.jit,
    static_argnames=(
        "num_rows",
        "num_classes",
        "hidden_width",
        "num_epochs",
        "min_updates",
        "batch_size",
        "optimizer",
    ),
)
def fit_layers(
    x: Float[Array, "n d"],
    y: Int[Array, " n"],
    mean: Float[Array, " d"],
    std: Float[Array, " d"],
    weight_decays: Float[Array, " g"],
    learning_rate: float | Array,
    key: Array,
    num_rows: int,
    *,
    num_classes: int,
    hidden_width: int,
    num_epochs: int,
    min_updates: int,
    batch_size: int,
    optimizer: MakeOptimizer,
) -> Layers:
    """Layers fitted to the first `num_rows` shuffled rows, with a leading axis of weight decays.

    The rows come shuffled; each epoch draws a new order of short blocks of rows, because blocks
    are read from memory many times faster than single rows.
    """
    batch_size = min(batch_size, num_rows)
    block = max(1, min(16, num_rows // 8192, batch_size))
    batch_blocks = batch_size // block
    num_batches = num_rows // block // batch_blocks
    num_epochs = max(num_epochs, -(-min_updates // num_batches))
    x_blocks = x[: num_rows // block * block].reshape(-1, block, x.shape[1])
    y_blocks = y[: num_rows // block * block].reshape(-1, block)

    def loss(params: Layers, weight_decay: Array, x: Array, y: Array) -> Array:
        nats = optax.softmax_cross_entropy_with_integer_labels(score(params, x), y).mean()
        return nats + weight_decay / 2 * sum(jnp.sum(weight**2) for weight, _ in params)

    gradients = jax.vmap(jax.grad(loss), (0, 0, None, None))
    transform = optimizer(learning_rate, num_epochs * num_batches)

    def step(state, blocks):
        params, moments = state
        batch = (x_blocks[blocks].reshape(-1, x.shape[1]) - mean) / std
        grads = gradients(params, weight_decays, batch, y_blocks[blocks].reshape(-1))
        updates, moments = transform.update(grads, moments)
        return (jax.tree.map(jnp.add, params, updates), moments), None

    def epoch(state, number):
        bits = jax.random.bits(jax.random.fold_in(key, number), (len(x_blocks),))
        order = jnp.argsort(bits)[: num_batches * batch_blocks]
        return jax.lax.scan(step, state, order.reshape(num_batches, batch_blocks))

    layers = initial_layers(key, x.shape[1], hidden_width, num_classes)
    params = jax.tree.map(lambda w: jnp.stack([w] * len(weight_decays)), layers)
    (params, _), _ = jax.lax.scan(epoch, (params, transform.init(params)), jnp.arange(num_epochs))
    return params


def initial_layers(key: Array, width: int, hidden_width: int, num_classes: int) -> Layers:
    """Zeros at the output, where symmetry does no harm; He's normal numbers before a ReLU."""
    layers = ()
    if hidden_width:
        weight = jax.random.normal(key, (width, hidden_width)) * np.sqrt(2 / width)
        layers = ((weight, jnp.zeros(hidden_width)),)
    last = jnp.zeros((hidden_width or width, num_classes)), jnp.zeros(num_classes)
    return (*layers, last)


@jax.jit
def standardisation(x: Float[Array, "n d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Mean and standard deviation of each dimension; 1 for a constant one."""
    mean = x.mean(axis=0)
    std = jnp.sqrt(jnp.mean(jnp.square(x - mean), axis=0))
    return mean, jnp.where(std > 1e-6 * jnp.abs(mean), std, 1.0)


def take(params: Layers, index: int) -> Layers:
    """The layers of one weight decay."""
    return jax.tree.map(lambda w: w[index], params)


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
