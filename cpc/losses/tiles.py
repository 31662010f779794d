"""InfoNCE computed in tiles, each a block of anchors against a block of candidates.

Let s_ij be the score of anchor i and candidate j, and p_i the score of its positive. With

    M_i = max_j s_ij        S_i = sum_j e^(s_ij - M_i)        x_i = M_i + log S_i - p_i,

where j runs over the negatives of anchor i, the loss is log(1 + e^x_i). Its derivatives are
sigma(x_i) e^(s_ij - M_i) / S_i by a negative and -sigma(x_i) by the positive. They keep their
precision if the positive has by far the highest score. M and S are accumulated tile by tile
(Milakov and Gimelshein 2018). The derivatives need a second pass over the tiles, so value and
gradient take 4 matrix products instead of 3 for whole rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cpc.types import AnyPosition, NegativeRule, is_positive

#: Maximum of an empty set of scores. The value is finite so that differences are never NaN.
MIN_SCORE = float(jnp.finfo(jnp.float32).min)
#: Maximum number of scores in a block of whole rows on a CPU: 256 MB of float32.
WHOLE_ROWS = 2**26
#: Number of scores in a block of short rows on a CPU: 2 MB of float32, which fits in the cache.
CACHED_SCORES = 2**19
#: Number of candidates per tile on a CPU, if rows are split.
COLUMNS = 4096
#: Both limits on other backends, 1 GB. With 131,072 candidates an H100 takes 0.72 of the time.
WHOLE_ROWS_OFF_CPU, COLUMNS_OFF_CPU = 2**28, 8192


class AnchorScores(NamedTuple):
    """Statistics of each anchor. All are zero if the anchor is not counted."""

    loss: Float[Array, "..."]
    num_negatives: Float[Array, "..."]
    rank: Float[Array, "..."]
    """Number of negatives whose score is at least the positive's score, so 0 is first place."""
    wins: Float[Array, "..."]
    """Number of negatives whose score is below the positive's score. A tie counts as one half."""
    counted: Float[Array, "..."]
    """1 if the anchor has a positive and at least one negative, otherwise 0."""

    @property
    def num_candidates(self) -> Float[Array, "..."]:
        """Number of candidates N_i, including the positive."""
        return self.counted + self.num_negatives


class Latents(NamedTuple):
    """Positions of latents and a mask that is False for padding, all with the same shape."""

    positions: AnyPosition
    mask: Bool[Array, "..."]


class Negatives(NamedTuple):
    """Running statistics of each anchor's negatives."""

    highest: Float[Array, " m"]
    """M, the highest score so far."""
    total: Float[Array, " m"]
    """S, the sum of e^(s - M) over the negatives."""
    number: Int[Array, " m"]
    beaten: Int[Array, " m"]
    tied: Int[Array, " m"]


def block_size(num_candidates: int, columns: int | None = None) -> int:
    """Return the default number of anchors per block for the current backend.

    It is 512 anchors on a CPU, or more if a larger block fits in the cache. An accelerator launches
    about 15 kernels per block, so its default is 8192, or as many anchors as fit without splitting
    candidates. If `columns` candidates are scored at a time, the scores stay within `limits`.

    >>> block_size(256), block_size(16_384), block_size(1_000_000, 1_000_000)
    (2048, 512, 67)
    """
    in_cache = max(512, CACHED_SCORES // max(num_candidates, 1))
    usual = in_cache if jax.default_backend() == "cpu" else 8192
    whole_rows, tile_size = limits()
    if columns is None and whole_rows // max(num_candidates, 1) < 512:
        columns = tile_size  # rows are split
    width = num_candidates if columns is None else min(columns, num_candidates)
    return max(1, min(usual, whole_rows // max(width, 1)))


def limits() -> tuple[int, int]:
    """Return the maximum number of scores per block of whole rows, and of candidates per tile."""
    if jax.default_backend() == "cpu":
        return WHOLE_ROWS, COLUMNS
    return WHOLE_ROWS_OFF_CPU, COLUMNS_OFF_CPU


def num_columns(rows: int, n: int, columns: int | None) -> int:
    """Return the number of candidates per tile for a block of anchors and n candidates.

    If `columns` is given, it is the maximum. If not, the result is n if that is within `limits`.

    >>> num_columns(512, 131_072, None), num_columns(512, 1_000_000, None), num_columns(9, 70, 32)
    (131072, 4096, 32)
    """
    if columns is None:
        whole_rows, tile_size = limits()
        columns = n if rows * n <= whole_rows else tile_size
    return min(columns, n)


def find_positives(anchors: Latents, candidates: Latents, offset: Any) -> Any:
    """Return a mask (m, n) of the candidates (n,) that the anchors (m,) predict."""
    here, there = _broadcast(anchors, candidates)
    return is_positive(here.positions, there.positions, offset) & (here.mask & there.mask)


def find_negatives(anchors: Latents, candidates: Latents, rule: NegativeRule, offset: Any) -> Any:
    """Return a mask (m, n) of the unpadded candidates that the rule allows."""
    here, there = _broadcast(anchors, candidates)
    return rule(here.positions, there.positions, offset) & (here.mask & there.mask)


def same_group_mask(anchors: Latents, candidates: Latents) -> Any:
    """Return a mask (m, n) of the candidates in the anchor's group. Negative groups never match."""
    here, there = _broadcast(anchors, candidates)
    group = here.positions.group
    return (group == there.positions.group) & (group >= 0)


def compare(
    q: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    anchors: Latents,
    candidates: Latents,
    rule: NegativeRule,
    offset: Any,
) -> tuple[Float[Array, "m n"], Bool[Array, "m n"], Bool[Array, "m n"]]:
    """Return scores (m, n) of anchors and candidates, and masks of the negatives and positives."""
    scores = jnp.matmul(q, keys.T, preferred_element_type=jnp.float32)
    positives = find_positives(anchors, candidates, offset)
    where = find_negatives(anchors, candidates, rule, offset) & ~positives
    return scores, where, positives


def _broadcast(anchors, candidates):
    columns = jax.tree.map(lambda x: x[:, None], anchors)
    return columns, jax.tree.map(lambda x: x[None, :], candidates)


def match_varying_axes(tree: Any) -> Any:
    """Return the arrays, cast so that all of them vary over the same mesh axes.

    This is needed inside a `jax.shard_map` that checks varying axes, where loop carries and
    arguments of custom gradients must have equal axes. Elsewhere the arrays are unchanged.
    """
    varying = [jax.typeof(x).mat.varying for x in jax.tree.leaves(tree)]
    axes = frozenset().union(*varying)

    def vary(x):
        return jax.lax.pcast(x, tuple(axes - jax.typeof(x).mat.varying), to="varying")

    return jax.tree.map(vary, tree) if axes else tree


def init_negatives(m: int) -> Negatives:
    """Return the statistics of m anchors before the first tile."""
    zero = jnp.zeros(m, jnp.int32)
    return Negatives(
        jnp.full(m, MIN_SCORE, jnp.float32), jnp.zeros(m, jnp.float32), zero, zero, zero
    )


def add_tile(
    seen: Negatives,
    scores: Float[Array, "m n"],
    positive: Float[Array, " m"],
    where: Bool[Array, "m n"],
) -> Negatives:
    """Return the statistics after adding the negatives of one tile."""
    p = positive[:, None]
    highest = jnp.maximum(seen.highest, jnp.where(where, scores, MIN_SCORE).max(-1))
    exp = jnp.exp(jnp.where(where, scores - highest[:, None], -jnp.inf))
    return Negatives(
        highest,
        seen.total * jnp.exp(seen.highest - highest) + exp.sum(-1),
        seen.number + where.sum(-1, dtype=jnp.int32),
        seen.beaten + (where & (scores < p)).sum(-1, dtype=jnp.int32),
        seen.tied + (where & (scores == p)).sum(-1, dtype=jnp.int32),
    )


def finish(
    seen: Negatives, positive: Float[Array, " m"], has_positive: Bool[Array, " m"]
) -> tuple[AnchorScores, Float[Array, " m"]]:
    """Return each anchor's statistics, and sigma(x), the scale of its derivatives.

    Both are 0 for anchors that are not counted.
    """
    counted = has_positive & (seen.number > 0)
    x = (seen.highest - positive) + jnp.log(jnp.where(counted, seen.total, 1.0))
    x = jnp.where(counted, x, 0.0)
    scores = make_scores(jax.nn.softplus(x), counted, seen.number, seen.beaten, seen.tied)
    return scores, scores.counted * jax.nn.sigmoid(x)


def make_scores(loss: Any, counted: Any, number: Any, beaten: Any, tied: Any) -> AnchorScores:
    """Return statistics from each anchor's loss and its numbers of negatives (m,)."""
    one = counted.astype(jnp.float32)
    return AnchorScores(
        loss=jnp.where(counted, loss, 0.0),
        num_negatives=one * number,
        rank=one * (number - beaten),
        wins=one * (beaten + 0.5 * tied),
        counted=one,
    )


def derivatives(
    scores: Float[Array, "m n"],
    where: Bool[Array, "m n"],
    is_positive: Bool[Array, "m n"],
    highest: Float[Array, " m"],
    total: Float[Array, " m"],
    size: Float[Array, " m"],
) -> Float[Array, "m n"]:
    """Return the losses' derivatives by the scores of a tile, from M, S and sigma(x) by anchor."""
    exp = jnp.exp(jnp.where(where, scores - highest[:, None], -jnp.inf))
    factor = size / jnp.where(total > 0, total, 1.0)
    return factor[:, None] * exp - jnp.where(is_positive, size[:, None], 0.0)


def find_targets(anchors: Latents, tiles: Latents, offset: Any) -> Int[Array, " m"]:
    """Return the index of each anchor's positive in the flattened tiles, or -1 if it has none."""
    num_tiles, columns = tiles.mask.shape

    def one_tile(index, tile):
        start, candidates = tile
        ids = start + jnp.arange(columns, dtype=jnp.int32)
        found = jnp.where(find_positives(anchors, candidates, offset), ids, -1).max(-1)
        return jnp.maximum(index, found), None

    none, _ = match_varying_axes((jnp.full(anchors.mask.shape, -1, jnp.int32), anchors))
    starts = columns * jnp.arange(num_tiles, dtype=jnp.int32)
    return jax.lax.scan(one_tile, none, (starts, tiles))[0]


def score_positives(
    queries: Float[Array, "m d"], targets: Float[Array, "m d"], columns: int
) -> Float[Array, " m"]:
    """Return the score of each query with its target, from matrix products with `columns` columns.

    A sum along rows, or a product of another size, would round differently, so that the positive
    would not tie with a negative that has the same vector.
    """
    m, parts = len(targets), split_axis(targets, columns)

    def one_part(_, part):
        start, targets = part
        scores = jnp.matmul(queries, targets.T, preferred_element_type=jnp.float32)
        rows = jnp.minimum(start + jnp.arange(columns), m - 1)
        return None, scores[rows, jnp.arange(columns)]

    starts = columns * jnp.arange(len(parts))
    return jax.lax.scan(one_part, None, (starts, parts))[1].ravel()[:m]


def split_axis(x: Array, size: int, axis: int = 0) -> Array:
    """Split an axis into two axes (parts, size), padded with zeros, or with False for a mask."""
    pads = [(0, 0)] * x.ndim
    pads[axis] = (0, -x.shape[axis] % size)
    return jnp.pad(x, pads).reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


def gradient_of_keys(queries: Float[Array, "m d"], weights: Float[Array, "m n"]) -> Array:
    """Return q^T w, the transposed gradient (d, n) of the keys.

    The queries are transposed in memory first, because a CPU product with a transposed left factor
    takes up to twice as long. The larger factor w is not transposed.
    """
    transposed = jax.lax.optimization_barrier(queries.T)
    return jnp.matmul(transposed, weights, preferred_element_type=jnp.float32)


def score_tiles(
    q: Float[Array, "m d"],
    weighted: Float[Array, "m d"],
    keys: Float[Array, "tiles columns d"],
    anchors: Latents,
    candidates: Latents,
    rule: NegativeRule,
    offset: Any,
    dkeys: Float[Array, "tiles d columns"] | None,
    sequences: tuple[int, int],
) -> tuple[AnchorScores, Any, Any, Any]:
    """Score anchors against all tiles of candidates, and compute derivatives of the losses.

    The candidates begin with the latents of the batch. `sequences` is the batch's number of
    sequences and the number of latents per sequence.

    Returns:
      The statistics of the anchors, the derivatives by q, `dkeys` plus the derivatives by the keys
      for `weighted` in place of q, and the weight (m, b) that each anchor gives to each sequence.
      Derivatives are None if `dkeys` is None.
    """
    index = find_targets(anchors, candidates, offset)
    targets = keys.reshape(-1, keys.shape[-1])[jnp.maximum(index, 0)]
    positive = score_positives(q, targets, keys.shape[1])

    def collect(seen, tile):
        i, keys, candidates = tile
        scores, where, _ = compare(q, keys, anchors, candidates, rule, offset)
        seen = add_tile(seen, scores, positive, where)
        if not sequences[0]:
            return seen, None
        return seen, _sum_tile(scores, where, seen.highest, i, sequences[1])

    nothing, dq, _ = match_varying_axes(
        (init_negatives(len(q)), jnp.zeros(q.shape, jnp.float32), q)
    )
    tiles = (jnp.arange(len(keys)), keys, candidates)
    seen, by_sequence = jax.lax.scan(collect, nothing, tiles)
    scores, size = finish(seen, positive, index >= 0)
    if by_sequence is not None:
        by_sequence = _join_tiles(*by_sequence, seen, size, keys.shape[1], *sequences)
    if dkeys is None:
        return scores, None, None, by_sequence

    def differentiate(carry, tile):
        dq, dkeys = carry
        i, keys, candidates = tile
        tile = compare(q, keys, anchors, candidates, rule, offset)
        w = derivatives(*tile, seen.highest, seen.total, size).astype(keys.dtype)
        dq += jnp.matmul(w, keys, preferred_element_type=jnp.float32)
        dkeys = dkeys.at[i].add(gradient_of_keys(weighted, w))
        return (dq, dkeys), None  # dkeys is a carry so that it is updated in place

    (dq, dkeys), _ = jax.lax.scan(differentiate, (dq, dkeys), tiles)
    return scores, dq, dkeys, by_sequence


def _sum_tile(scores, where, highest, i, length):
    """Return the sums of e^(s - M) over each sequence in tile i, shape (m, r), and M."""
    columns = scores.shape[1]
    start = i * columns
    sequence = (start + jnp.arange(columns)) // length - start // length
    one_hot = jax.nn.one_hot(sequence, (columns - 1) // length + 2, dtype=jnp.float32)
    exp = jnp.exp(jnp.where(where, scores - highest[:, None], -jnp.inf))
    return jnp.matmul(exp, one_hot, precision="highest"), highest


def _join_tiles(exp, highest, seen, size, columns, num_sequences, length):
    """Return the weights of each sequence (m, b) from the sums of all tiles (tiles, m, r)."""
    weights = rescale_sums(exp, highest, seen, size)
    first = jnp.arange(len(exp)) * columns // length
    index = (first[:, None] + jnp.arange(exp.shape[-1])).ravel()
    rows = jnp.swapaxes(weights, 1, 2).reshape(-1, len(size))
    none = jnp.zeros((num_sequences, len(size)), weights.dtype)
    return none.at[index].add(rows, mode="drop").T  # drops candidates that are not in the batch


def rescale_sums(
    exp: Float[Array, "... m r"],
    highest: Float[Array, "... m"],
    seen: Negatives,
    size: Float[Array, "*#all m"],
) -> Float[Array, "... m r"]:
    """Return derivatives by negatives from sums of e^(s - M), with each tile's `highest` as M."""
    factor = jnp.exp(highest - seen.highest) * size / jnp.where(seen.total > 0, seen.total, 1.0)
    return factor[..., None] * exp
