"""Probes: layers over standardised features, with their input rows and predictions."""

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from cpc.types import Array, ArrayLike, UserError

#: (weight, bias) of each layer. A linear probe has one layer, and a hidden layer adds another.
Layers: TypeAlias = tuple[tuple[ArrayLike, ArrayLike], ...]
CHUNK_FRAMES = 8192
CHUNK_VALUES = 2**27  # half a GiB; limits chunks if features are pixels of large images


class Stacked(NamedTuple):
    """Rows of consecutive frames, which are only copied when they are read.

    Row i is `frames[first[i] : first[i] + num]`, flattened.
    """

    frames: Float[np.ndarray, "n d"]
    first: Int[np.ndarray, " rows"]
    num: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and width of each row."""
        return len(self.first), self.num * self.frames.shape[1]


def with_neighbours(frames: Float[np.ndarray, "t d"], reach: int) -> Stacked:
    """Return one row per frame, with the frame and `reach` neighbours on either side.

    The first and the last frame are repeated beyond the ends of the utterance.

    >>> read_rows(with_neighbours(np.array([[1.0], [2.0], [3.0]]), 1))
    array([[1., 1., 2.],
           [1., 2., 3.],
           [2., 3., 3.]])
    """
    first = np.arange(len(frames), dtype=np.int32)
    if len(frames):
        frames = np.pad(frames, ((reach, reach), (0, 0)), mode="edge")
    return Stacked(frames, first, 2 * reach + 1)


def as_stacked(features: Float[ArrayLike, "n d"] | Stacked) -> Stacked:
    """Convert features to `Stacked`, where each row of an array becomes a single frame."""
    if isinstance(features, Stacked):
        return features
    frames = np.asarray(features)
    return Stacked(frames, np.arange(len(frames), dtype=np.int32), 1)


def read_rows(
    features: Float[ArrayLike, "n d"] | Stacked, start: int = 0, stop: int | None = None
) -> Float[np.ndarray, "rows d"]:
    """Return the rows from `start` to `stop` as an array."""
    if not isinstance(features, Stacked):
        return np.asarray(features[start:stop])
    index = features.first[start:stop, None] + np.arange(features.num)
    return features.frames[index].reshape(len(index), features.shape[1])


def join(parts: Sequence[Float[ArrayLike, "_ _"] | Stacked]) -> Stacked:
    """Concatenate the rows of several utterances."""
    stacked = [as_stacked(part) for part in parts]
    starts = np.cumsum([0, *(len(one.frames) for one in stacked)])
    first = [one.first + np.int32(start) for one, start in zip(stacked, starts, strict=False)]
    frames = np.concatenate([one.frames for one in stacked])
    return Stacked(frames, np.concatenate(first), stacked[0].num)


def keep(rows: Stacked, chosen: Int[np.ndarray, " m"]) -> Stacked:
    """Return the chosen rows, and drop all frames that are not part of a chosen row."""
    frames, first, num = rows.frames, rows.first[chosen], rows.num
    used = np.zeros(len(frames), bool)
    for of_row in range(num):
        used[first + of_row] = True
    if used.all():
        return Stacked(frames, first, num)
    return Stacked(frames[used], (np.cumsum(used, dtype=np.int32) - 1)[first], num)


class Probe(NamedTuple):
    """A fitted probe, which applies layers to standardised features."""

    params: Layers
    mean: Array
    std: Array
    """Mean and standard deviation (d,) of the training features. A constant one has deviation 1."""
    weight_decay: float | int
    converged: bool = True
    """Whether the fit reached its gradient tolerance, if it has one."""


def describe_fit(probe: Probe) -> str:
    """Describe a fit by its weight decay, with a note if the fit did not converge.

    >>> describe_fit(Probe((), np.zeros(1), np.ones(1), 0.01, converged=False))
    'l2 0.01, not converged'
    """
    return f"l2 {probe.weight_decay:g}" + ("" if probe.converged else ", not converged")


def predict(probe: Probe, features: Float[ArrayLike, "n d"] | Stacked) -> Float[np.ndarray, "n c"]:
    """Return the class log-probabilities of all rows as a NumPy array.

    Rows are processed in chunks of the same shape, so that only one program is compiled.
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
    """Return the class log-probabilities of a batch of features."""
    x = (features.astype(jnp.float32) - probe.mean) / probe.std
    return jax.nn.log_softmax(score(probe.params, x))


def score(params: Layers, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """Apply layers with ReLUs between them, and return the scores before the softmax."""
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


@functools.partial(jax.jit, static_argnames="num")
def read_rows_at(x: Float[Array, "n d"], first: Int[Array, " rows"], num: int) -> Array:
    """Return flattened rows of `num` consecutive frames, given the index of each first frame."""
    # Slices are faster: gathering 17 frames one by one takes as long as their matrix products.
    rows = jax.vmap(lambda i: jax.lax.dynamic_slice_in_dim(x, i, num))(first)
    return rows.reshape(len(first), -1)


@jax.jit
def standardisation(x: Float[Array, "n d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return the mean and standard deviation of each dimension.

    The standard deviation of a constant dimension is 1. Deviations are divided by a power of two
    before they are squared, because squares overflow above about 1e19 and vanish below 1e-19.
    """
    mean = x.mean(axis=0)
    largest = jnp.abs(x - mean).max(axis=0)
    unit = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1.0)
    unit = jnp.ldexp(jnp.float32(1.0), jnp.frexp(unit)[1] - 1)
    std = unit * jnp.sqrt(jnp.mean(jnp.square((x - mean) / unit), axis=0))
    return mean, jnp.where(std > 1e-6 * jnp.abs(mean), std, 1.0)


def check_finite(*features: Float[ArrayLike, "..."]) -> None:
    """Check that all features are finite."""
    for one in features:
        bad = ~np.isfinite(np.asarray(one))
        if bad.any():
            at = np.argwhere(bad)[0][-1]
            raise UserError(f"feature {at} of {bad.shape[-1]} is not finite: check model and input")


@jax.jit
def standardised(
    x: Float[Array, "n d"], mean: Float[Array, " d"], std: Float[Array, " d"]
) -> Float[Array, "n d"]:
    """Scale frames by a mean and standard deviation from `standardisation`."""
    return (x - mean) / std


def check_labels(labels: Int[np.ndarray, " n"], num_classes: int) -> None:
    """Check that training labels are in range and contain at least two classes."""
    if len(labels) and (labels.max() >= num_classes or labels.min() < -1):
        raise UserError(
            f"labels of a probe with {num_classes} classes must be in 0..{num_classes - 1}, or -1 "
            f"(got {labels.min()} to {labels.max()})"
        )
    if len(np.unique(labels[labels >= 0])) < 2:
        raise UserError("a probe needs at least two classes among its training labels: add data")
