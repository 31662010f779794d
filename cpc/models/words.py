"""Word prediction models as pure functions of embedding rows.

Models read a slice of t + 2 r words, with a margin of r words on either side, and map the rows of
the input table to a vector h per position. The score of word v is h . output_v + bias_v. The
vector h of each model is:

    skip_gram  the row of the word itself, which predicts its neighbours (Mikolov et al. 2013)
    cbow       the mean of the neighbours' rows (Mikolov et al. 2013)
    vlbl       sum_i a_i * row_(-i) over the previous words (Mnih & Kavukcuoglu 2013, eq. 4)
    lbl        sum_i row_(-i) A_i, with matrices A_i (Mnih & Hinton 2007)
    nplm       tanh of a linear layer on the concatenated previous rows (Bengio et al. 2003)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.types import PyTree, UserError


class WordModel(NamedTuple):
    """A word prediction model, as returned by `word_model`."""

    name: str
    reach: int
    """Number r of context words on either side, or before the word if `is_causal`."""
    is_causal: bool
    """Whether only previous words are used, as in language models."""
    predicts_neighbours: bool
    """Whether the labels are the neighbours, as in skip-gram, instead of the word itself."""
    init: Callable[[Array, int], PyTree]
    """init(rng, num_words) returns {"tables": {"input", "output", "bias"}, "dense": ...}."""
    encode: Callable[[Array, Array, PyTree], Array]
    """encode(rows (t + 2 r, d), sees (t, 2 r + 1), dense) returns h (t, h), where `sees` is a mask
    of the words within r of each position."""


#: Names of the models.
MODELS = ("skip_gram", "cbow", "vlbl", "lbl", "nplm")


def word_model(name: str, width: int, reach: int, hidden: int = 0) -> WordModel:
    """Return one of `MODELS` with `reach` context words and input rows of width `width`.

    `hidden` is the width of NPLM's hidden layer and output rows. If it is 0, `width` is used.

    >>> word_model("nplm", 16, 4, 32).is_causal
    True
    """
    if name not in MODELS:
        raise UserError(f"word model {name!r} is unknown: choose one of {', '.join(MODELS)}")
    if min(width, reach) < 1:
        raise UserError(f"width and reach must be at least 1 (got width {width} and reach {reach})")
    hidden = (hidden or width) if name == "nplm" else width
    is_causal = name in ("vlbl", "lbl", "nplm")

    def init(rng, num_words):
        keys = jax.random.split(rng, 3)
        small = jax.random.uniform(keys[0], (num_words, width), minval=-0.5, maxval=0.5)
        tables = {
            "input": small * (0.2 if is_causal else 1 / width),
            "output": jnp.zeros((num_words, hidden)),
            "bias": jnp.zeros(num_words),
        }
        return {"tables": tables, "dense": init_dense(keys[1])}

    def init_dense(rng):
        if name == "vlbl":
            return {"position": jnp.full((reach, width), 1 / reach)}
        if name == "lbl":
            return {"position": jnp.broadcast_to(jnp.eye(width) / reach, (reach, width, width))}
        if name == "nplm":
            matrix = jax.random.normal(rng, (reach * width, hidden)) / (reach * width) ** 0.5
            return {"kernel": matrix, "bias": jnp.zeros(hidden)}
        return {}

    def encode(rows, sees, dense):
        t = len(sees)
        if name == "skip_gram":
            return rows[reach : reach + t]
        if name == "cbow":
            total = banded_sum(rows, sees.at[:, reach].set(False))
            return total / jnp.maximum(sees.sum(-1) - sees[:, reach], 1)[:, None]
        before = jnp.stack([rows[reach - i : reach - i + t] for i in range(1, reach + 1)], 1)
        before = jnp.where(sees[:, reach - 1 :: -1, None], before, 0.0)
        if name == "vlbl":
            return jnp.einsum("tid,id->td", before, dense["position"])
        if name == "lbl":
            return jnp.einsum("tid,ide->te", before, dense["position"])
        return jnp.tanh(before.reshape(t, -1) @ dense["kernel"] + dense["bias"])

    return WordModel(name, reach, is_causal, name == "skip_gram", init, encode)


def context_mask(
    words: Int[Array, " s"], sentence: Int[Array, " s"], reach: int, near: Any = None
) -> Bool[Array, "t w"]:
    """Return a mask of the same-sentence words within `reach` = r words of each position.

    `words` are t + 2 r ids, with -1 for padding, and `sentence` their sentence numbers. `near` (t,)
    lowers the reach at each position. It is at most r, the default.

    >>> words = jnp.array([-1, 5, 6, 7, -1])
    >>> context_mask(words, jnp.array([-1, 0, 0, 1, -1]), 1)
    Array([[False,  True,  True],
           [ True,  True, False],
           [False,  True, False]], dtype=bool)
    """
    t = len(words) - 2 * reach
    here = sentence[reach : reach + t]
    offsets = range(-reach, reach + 1)
    is_same = [sentence[reach + i : reach + i + t] == here for i in offsets]
    is_word = [words[reach + i : reach + i + t] >= 0 for i in offsets]
    sees = jnp.stack(is_same, 1) & jnp.stack(is_word, 1) & is_word[reach][:, None]
    if near is not None:
        sees &= jnp.abs(jnp.arange(-reach, reach + 1)) <= near[:, None]
    return sees


def overlapping_blocks(x: Array, block: int, reach: int) -> Array:
    """Split (t + 2 r, ...) into overlapping slices (t / block, block + 2 r, ...).

    >>> overlapping_blocks(jnp.arange(6), 2, 1)
    Array([[0, 1, 2, 3],
           [2, 3, 4, 5]], dtype=int32)
    """
    t, size = len(x) - 2 * reach, block + 2 * reach
    if block >= 2 * reach:  # reshape, then append the start of the next block
        rest = jnp.zeros((block - 2 * reach, *x.shape[1:]), x.dtype)
        blocks = jnp.concatenate([x, rest]).reshape(-1, block, *x.shape[1:])
        return jnp.concatenate([blocks[:-1], blocks[1:, : 2 * reach]], 1)
    return jnp.stack([x[i : i + size] for i in range(0, t, block)])


def band_mask(sees: Bool[Array, "t w"], block: int) -> Bool[Array, "g block e"]:
    """Convert a mask `sees` from `context_mask` to a mask over each block's slice of words.

    >>> band_mask(jnp.ones((2, 3), bool), 2)[0].astype(int)
    Array([[1, 1, 1, 0],
           [0, 1, 1, 1]], dtype=int32)
    """
    t, w = sees.shape
    rows = jnp.pad(sees.reshape(t // block, block, w), ((0, 0), (0, 0), (0, block)))
    # Rows are one longer than the slice, so that flattening shifts row i by i.
    flat = rows.reshape(t // block, -1)[:, : block * (w + block - 1)]
    return flat.reshape(t // block, block, w + block - 1)


def block_size(t: int, reach: int) -> int:
    """Return the number of positions per slice, the smallest divisor of t that is at least 2 r.

    If there is no such divisor, the result is t.

    >>> block_size(1024, 5), block_size(6, 5)
    (16, 6)
    """
    fits = [size for size in range(1, t + 1) if t % size == 0 and size >= 2 * reach]
    return fits[0] if fits else t


def banded_sum(rows: Float[Array, "s d"], sees: Bool[Array, "t w"]) -> Float[Array, "t d"]:
    """Sum the rows that `sees`, a mask from `context_mask`, selects at each position."""
    t, reach = len(sees), sees.shape[1] // 2
    block = block_size(t, reach)
    weights = band_mask(sees, block).astype(rows.dtype)
    total = jnp.einsum("gce,ged->gcd", weights, overlapping_blocks(rows, block, reach))
    return total.reshape(t, -1)
