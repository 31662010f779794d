"""Probes as layers over standardised features, their rows, and their predictions."""

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from cpc.types import Array, ArrayLike, UserError

#: (weight, bias) of each layer: one for a linear probe, two with a hidden layer.
Layers: TypeAlias = tuple[tuple[ArrayLike, ArrayLike], ...]
CHUNK_FRAMES = 8192
CHUNK_VALUES = 2**27  # half a GiB, for pixels of large images


class Stacked(NamedTuple):
    """Rows of consecutive frames, copied only when they are read.

    Row i is `frames[first[i] : first[i] + num]`, flattened.
    """

    frames: Float[np.ndarray, "n d"]
    first: Int[np.ndarray, " rows"]
    num: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of the numbers in each."""
        return len(self.first), self.num * self.frames.shape[1]


def with_neighbours(frames: Float[np.ndarray, "t d"], reach: int) -> Stacked:
    """Return each frame of an utterance with `reach` frames on either side, ends repeated.

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
    """Return rows as `Stacked`; rows of an array are single frames."""
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
    """Return the rows of utterances, one after the other."""
    stacked = [as_stacked(part) for part in parts]
    starts = np.cumsum([0, *(len(one.frames) for one in stacked)])
    first = [one.first + np.int32(start) for one, start in zip(stacked, starts, strict=False)]
    frames = np.concatenate([one.frames for one in stacked])
    return Stacked(frames, np.concatenate(first), stacked[0].num)


def keep(rows: Stacked, chosen: Int[np.ndarray, " m"]) -> Stacked:
    """Return the chosen rows, without frames that none of them reads."""
    frames, first, num = rows.frames, rows.first[chosen], rows.num
    used = np.zeros(len(frames), bool)
    for of_row in range(num):
        used[first + of_row] = True
    if used.all():
        return Stacked(frames, first, num)
    return Stacked(frames[used], (np.cumsum(used, dtype=np.int32) - 1)[first], num)


class Probe(NamedTuple):
    """A fitted probe: layers over standardised features."""

    params: Layers
    mean: Array
    std: Array
    """Mean and standard deviation of the training features (d,); 1 if they are constant."""
    weight_decay: float | int
    converged: bool = True
    """Whether the gradient reached its tolerance, if the fit has one."""


def describe_fit(probe: Probe) -> str:
    """Return the chosen weight decay, and whether the fit has not converged.

    >>> describe_fit(Probe((), np.zeros(1), np.ones(1), 0.01, converged=False))
    'l2 0.01, not converged'
    """
    return f"l2 {probe.weight_decay:g}" + ("" if probe.converged else ", not converged")


def predict(probe: Probe, features: Float[ArrayLike, "n d"] | Stacked) -> Float[np.ndarray, "n c"]:
    """Return log-probabilities of the classes on the host, in chunks of one compiled shape."""
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
    """Return the log-probabilities of the classes."""
    x = (features.astype(jnp.float32) - probe.mean) / probe.std
    return jax.nn.log_softmax(score(probe.params, x))


def score(params: Layers, x: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """Return the scores before the softmax, with ReLUs between layers."""
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


@functools.partial(jax.jit, static_argnames="num")
def read_rows_at(x: Float[Array, "n d"], first: Int[Array, " rows"], num: int) -> Array:
    """Return rows of `num` consecutive frames, flattened, from their first frames on."""
    # Slices: gathering 17 frames one by one takes as long as their products.
    rows = jax.vmap(lambda i: jax.lax.dynamic_slice_in_dim(x, i, num))(first)
    return rows.reshape(len(first), -1)


@jax.jit
def standardisation(x: Float[Array, "n d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return the mean and standard deviation of each dimension; 1 if it is constant.

    Deviations are divided by a power of two before they are squared, because squares overflow from
    about 1e19 on and vanish below about 1e-19.
    """
    mean = x.mean(axis=0)
    largest = jnp.abs(x - mean).max(axis=0)
    unit = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1.0)
    unit = jnp.ldexp(jnp.float32(1.0), jnp.frexp(unit)[1] - 1)
    std = unit * jnp.sqrt(jnp.mean(jnp.square((x - mean) / unit), axis=0))
    return mean, jnp.where(std > 1e-6 * jnp.abs(mean), std, 1.0)


def check_finite(*features: Float[ArrayLike, "..."]) -> None:
    """Raise a UserError for features that are not finite."""
    for one in features:
        bad = ~np.isfinite(np.asarray(one))
        if bad.any():
            at = np.argwhere(bad)[0][-1]
            raise UserError(
                f"feature {at} of {bad.shape[-1]} is not finite: check the network and its input"
            )


@jax.jit
def standardised(
    x: Float[Array, "n d"], mean: Float[Array, " d"], std: Float[Array, " d"]
) -> Float[Array, "n d"]:
    """Return frames whose dimensions have mean 0 and standard deviation 1."""
    return (x - mean) / std


def check_labels(labels: Int[np.ndarray, " n"], num_classes: int) -> None:
    """Raise a UserError for labels that no probe can be fitted to."""
    if len(labels) and (labels.max() >= num_classes or labels.min() < -1):
        raise UserError(
            f"labels of a probe with {num_classes} classes must be in 0..{num_classes - 1}, or -1 "
            f"(got {labels.min()} to {labels.max()})"
        )
    if len(np.unique(labels[labels >= 0])) < 2:
        raise UserError("a probe needs at least two classes among its training labels: add data")
