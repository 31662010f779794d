"""Measures of a representation that need no labels: its spread, and the bitrate of its codes."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from cpc.results import Score
from cpc.types import Array, ArrayLike


def feature_spread(
    features: Float[ArrayLike, "n d"], where: Bool[ArrayLike, " n"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the mean standard deviation of the dimensions, and the effective rank.

    rank = exp(-sum_i p_i log p_i), where p are the eigenvalues of the covariance divided by their
    sum (Roy and Vetterli, 2007). The rank is d if the features fill all directions equally, 1 if
    they are on a line, and 0 if they are constant. The function can be jitted and computes in
    float32. Rows outside of the mask `where` are ignored and may contain NaN.

    >>> cross = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> [round(float(value), 3) for value in feature_spread(cross)]
    [0.707, 2.0]
    """
    features = jnp.asarray(features, jnp.float32)
    counted = jnp.ones(len(features), bool) if where is None else jnp.asarray(where)
    features = jnp.where(counted[:, None], features, 0.0)
    number = jnp.maximum(counted.sum(), 1)
    centred = jnp.where(counted[:, None], features - features.sum(axis=0) / number, 0.0)
    std = jnp.sqrt(jnp.square(centred).sum(axis=0) / number).mean()
    # Rounding of the mean leaves small values in constant features, so their rank would not be 0.
    dust = 1e-6 * jnp.abs(features).max(initial=0.0)
    collapsed = std <= dust
    scaled = centred / jnp.where(collapsed, 1.0, std)
    eigenvalues = jnp.linalg.eigvalsh(scaled.T @ scaled / number)
    eigenvalues = jnp.maximum(eigenvalues, 0.0)
    share = eigenvalues / jnp.maximum(eigenvalues.sum(), 1e-30)
    entropy = -jnp.sum(share * jnp.log(jnp.where(share > 0, share, 1.0)))
    return jnp.where(collapsed, 0.0, std), jnp.where(collapsed, 0.0, jnp.exp(entropy))


def code_entropy(frames: Float[np.ndarray, "n d"]) -> tuple[float, int]:
    """Return the entropy of code frequencies in bits, and the number of different codes.

    The codes are the different vectors among the frames, compared bit by bit. The entropy is
    H = -sum_i p_i log2 p_i over their frequencies p. For n frames, H is too low by about
    (codes - 1) / (2 n ln 2).

    >>> code_entropy(np.array([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0], [2.0, 0.0]]))
    (1.0, 2)
    """
    rows = np.ascontiguousarray(frames + 0)  # makes -0 and 0 equal
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, counts = np.unique(keys, return_counts=True)
    p = counts / counts.sum()
    return float(max(0.0, -(p * np.log2(p)).sum())), len(counts)


def code_scores(
    frames: Sequence[Float[np.ndarray, "_ d"]], frame_seconds: float, *, data: str, features: str
) -> list[Score]:
    """Return the bitrate and perplexity of the codes, the different frame vectors, in utterances.

    The bitrate is frames per second times the entropy (Dunbar et al. 2019, ZeroSpeech). It ignores
    the order and duration of codes. The perplexity is 2 to the power of the entropy.
    """
    rows = np.concatenate(frames)
    entropy, number = code_entropy(rows)
    setting = f"{number:,} codes in {len(rows):,} frames"
    seconds = round(len(rows) * frame_seconds)
    return [
        Score("codes", data, "second", features, "unigram", "bits per second",
              entropy / frame_seconds, higher_is_better=False, num_test=seconds, setting=setting),
        Score("codes", data, "frame", features, "unigram", "perplexity", 2.0**entropy,
              num_test=len(rows), setting=setting),
    ]  # fmt: skip
