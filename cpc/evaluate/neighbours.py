"""Nearest neighbours for kNN classification, and the patches that activate a unit most."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from cpc.evaluate.probe import check_finite
from cpc.types import Array, ArrayLike, UserError

#: Number of cosines that are computed at a time and fit into the CPU caches, and minimum number of
#: queries, so that a large gallery is not read too often.
BLOCK_COSINES, MIN_QUERIES = 2**23, 64


class Top(NamedTuple):
    """The k highest scores for each query or unit, in descending order, and the rows with them."""

    score: Float[ArrayLike, "r k"]
    row: Int[ArrayLike, "r k"]


def nearest(gallery: Float[ArrayLike, "n _"], features: Float[ArrayLike, "m _"], *, k: int) -> Top:
    """Return the k rows of `gallery` with the highest cosine similarity to each row of `features`.

    Cosines are computed in blocks on the device. Ties go to the earlier row. A row of zeros has
    cosine 0 with every row.

    >>> nearest(np.eye(3), np.array([[0.1, 2.0, 1.0]]), k=2).row
    array([[1, 2]], dtype=int32)
    """
    if not 1 <= k <= len(gallery):
        raise UserError(f"k must be in 1..{len(gallery)}, the number of training rows (got {k})")
    if gallery.shape[1] != features.shape[1]:
        raise UserError(
            f"training features are {gallery.shape[1]} wide and the others {features.shape[1]}: "
            "pass features of the same width"
        )
    check_finite(gallery, features)
    rows, parts, num = normalise(gallery), [], max(1, len(features))
    block = min(max(MIN_QUERIES, BLOCK_COSINES // len(rows)), num)
    for start in range(0, num, block):
        queries = normalise(features[start : start + block])
        top = search(rows, jnp.pad(queries, ((0, block - len(queries)), (0, 0))), k=k)
        parts.append(jax.tree.map(lambda one, n=len(queries): np.asarray(one)[:n], top))
    return Top(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def knn_predict(
    train_features: Float[ArrayLike, "n _"],
    train_labels: Int[np.ndarray, " _"],
    features: Float[ArrayLike, "m _"],
    *,
    num_classes: int,
    k: int = 20,
    temperature: float | int = 0.07,
) -> Float[np.ndarray, "m c"]:
    """Return the fraction of votes for each class among the k nearest training rows.

    The fraction for class c is the sum of exp(cosine / temperature) over the neighbours of class c,
    divided by the sum over all k neighbours (Wu et al., 2018, section 3.4). The default k = 20 is
    from DINO (Caron et al., 2021).

    >>> knn_predict(np.eye(2), np.array([0, 1]), np.array([[2.0, 2.0]]), num_classes=2, k=2)
    array([[0.5, 0.5]], dtype=float32)
    """
    if len(train_labels) != len(train_features):
        raise UserError(
            f"{len(train_features)} training rows have {len(train_labels)} labels: pass one each"
        )
    if len(train_labels) and not 0 <= train_labels.min() <= train_labels.max() < num_classes:
        raise UserError(
            f"training labels must be in 0..{num_classes - 1} (got {train_labels.min()} to "
            f"{train_labels.max()}): remove unlabelled rows"
        )
    top = nearest(train_features, features, k=k)
    weight = np.exp((top.score - top.score[:, :1]) / np.float32(temperature))
    share = np.zeros((len(top.row), num_classes), np.float32)
    np.add.at(share, (np.arange(len(share))[:, None], train_labels[top.row]), weight)
    return share / share.sum(axis=1, keepdims=True)


def most_exciting(activations: Iterable[Float[ArrayLike, "_ u"]], k: int) -> Top:
    """Return each unit's k patches with the highest activation, over all batches.

    Patches are numbered consecutively over all batches. Scores and rows have shape (u, k) and are
    sorted by descending activation. Ties go to the earlier patch.

    >>> most_exciting([np.array([[1.0, 0.0], [3.0, 5.0]]), np.array([[2.0, 9.0]])], k=2).row
    array([[1, 2],
           [2, 1]], dtype=int32)
    """
    top, count = None, 0
    for batch in activations:
        rows = jnp.asarray(batch, jnp.float32).T
        if top is None:  # any patch replaces the score -inf
            shape = len(rows), max(0, k)
            top = Top(jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.int32))
        top = merge(top, rows, jnp.int32(count))
        count += rows.shape[1]
    if top is None or not 1 <= k <= count:
        raise UserError(f"k is {k}, but there are {count} patches: set k between 1 and that number")
    return Top(*(np.asarray(one) for one in top))


@functools.partial(jax.jit, static_argnames="k")
def search(rows: Float[Array, "n d"], queries: Float[Array, "r d"], *, k: int) -> Top:
    """Return the k rows nearest to each query."""
    with jax.default_matmul_precision("highest"):
        return Top(*jax.lax.top_k(queries @ rows.T, k))


@jax.jit
def merge(top: Top, scores: Float[Array, "r n"], first: Int[Array, ""]) -> Top:
    """Merge the top k with the scores of new rows, which are numbered from `first` on."""
    k = top.score.shape[1]
    new_score, new_row = jax.lax.top_k(scores, min(k, scores.shape[1]))
    score = jnp.concatenate([top.score, new_score], axis=1)
    row = jnp.concatenate([top.row, first + new_row.astype(jnp.int32)], axis=1)
    score, chosen = jax.lax.top_k(score, k)
    return Top(score, jnp.take_along_axis(row, chosen, axis=1))


def normalise(rows: Float[ArrayLike, "n d"]) -> Float[Array, "n d"]:
    """Scale rows to length one in float32, and leave rows of zeros unchanged."""
    rows = jnp.asarray(rows, jnp.float32)
    length = jnp.linalg.norm(rows, axis=1, keepdims=True)
    return rows / jnp.where(length > 0, length, 1.0)
