"""InfoNCE by tiles as Pallas kernels, by way of Mosaic: a TPU's form of `cpc.losses.tiles`.

Three kernels share the maths of the tiles: one collects each anchor's negatives, one makes the
derivatives by the queries and one those by the keys, 5 products in all. No score leaves the chip.
Each runs on a grid, own tiles by others: a tile and its output stay on the chip while the others
pass by in order. All arrays are cut, (tiles, rows, lanes), and a block is one tile. What an anchor
has one number of lies along the lanes: as a column, each number would fill all 128. Rules are
traced in the kernels: they may close over numbers, not over arrays.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu
from jaxtyping import Array, Float

from cpc.losses.tiles import (
    COLUMNS,
    AnchorScores,
    Latents,
    Negatives,
    add_tile,
    cut_latents,
    derivatives,
    find_negatives,
    find_positives,
    find_targets,
    finish,
    no_negatives,
)
from cpc.types import NegativeRule, Position


def score_on_tpu(
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    anchors: Latents,
    candidates: Latents,
    weights: Float[Array, " m"] | None,
    rule: NegativeRule,
    offset: int,
    *,
    size: int = 256,
    interpret: bool = False,
) -> tuple[AnchorScores, Any, Any]:
    """Scores of the anchors and, given weights, the derivatives of their losses.

    Those by the queries are of each anchor's own loss, those by the keys of the weighted sum.

    Args:
      queries: over the temperature.
      keys: of the candidates.
      anchors: (m,).
      candidates: (n,).
      weights: None for no derivatives.
      rule: rule(anchor, candidate, offset) -> bool.
      offset: steps from the anchor to its positive.
      size: anchors and candidates of a tile, a multiple of 128. 256 of float32 fit a v5e's VMEM
        where d is 1024, and not where it is 2048.
      interpret: run on any platform, slowly, with tiles of any size.
    """
    (m, d), n = queries.shape, len(keys)
    index = find_targets(anchors, cut_latents(min(n, COLUMNS), keys, candidates)[1], offset)
    cut = functools.partial(_cut, size)
    q, k, targets = cut(queries), cut(keys), cut(keys[jnp.maximum(index, 0)])
    rows, columns = ([cut(x) for x in (*p.positions, p.exists)] for p in (anchors, candidates))

    def call(kernel, own, others, outputs):
        def tiles(axis, arrays):
            return [
                pl.BlockSpec((None, *x.shape[1:]), lambda *at: (at[axis], 0, 0)) for x in arrays
            ]

        return pl.pallas_call(
            functools.partial(kernel, rule=rule, offset=offset),
            grid=(len(own[0]), len(others[0])),
            in_specs=[*tiles(0, own), *tiles(1, others)],
            out_specs=tiles(0, outputs),
            out_shape=outputs,
            interpret=interpret,
            compiler_params=tpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        )(*own, *others)

    numbers = (len(q), 1, size)
    real, whole = (jax.ShapeDtypeStruct(numbers, x) for x in (jnp.float32, jnp.int32))
    outputs = [real, real, whole, whole, whole, real]
    collected = call(_collect, [q, *rows, targets], [k, *columns], outputs)
    *seen, positive = (x.ravel()[:m] for x in collected)
    seen = Negatives(*seen)
    scores, sigma = finish(seen, positive, index >= 0)
    if weights is None:
        return scores, None, None
    per_row = [cut(x) for x in (seen.highest, seen.total, sigma)]
    of_queries, of_keys = (jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (q, k))
    [dq] = call(_by_queries, [q, *rows, *per_row], [k, *columns], [of_queries])
    weighted = cut((weights[:, None] * queries).astype(queries.dtype))
    [dk] = call(_by_keys, [k, *columns], [q, *rows, *per_row, weighted], [of_keys])
    dq, dk = (x.reshape(-1, x.shape[-1])[:, :d] for x in (dq, dk))
    return scores, dq[:m].astype(queries.dtype), dk[:n]


def _cut(size, x):
    """Tiles (tiles, size, d) of vectors, or (tiles, 1, size) of numbers; what is added is 0."""
    x = x.astype(jnp.int32) if x.dtype == bool else x
    x = jnp.pad(x, [(0, -len(x) % size), (0, -x.shape[-1] % 128)][: x.ndim])
    return x.reshape(-1, size, x.shape[1]) if x.ndim == 2 else x.reshape(-1, 1, size)


def _read(refs):
    return [ref[0] for ref in refs]


def _write(refs, values):
    for ref, x in zip(refs, values, strict=True):
        ref[0] = x


def _at_first(start):
    pl.when(pl.program_id(1) == 0)(start)


def _product(a, b):
    """Float32 sums, and no float32 rounded to bfloat16."""
    # Mosaic refuses to be precise about what is half precision already.
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.matmul(a, b, preferred_element_type=jnp.float32, precision=precision)


def _score_tile(q, k, rows, columns, rule, offset):
    """Scores, which are negatives and which the positive; latents as five arrays (size,)."""
    # Existence stays an integer until it is a matrix: Mosaic turns no vector of booleans.
    rows, columns = (Latents(Position(*x[:4]), x[4]) for x in (rows, columns))
    is_positive = find_positives(rows, columns, offset) != 0
    where = (find_negatives(rows, columns, rule, offset) != 0) & ~is_positive
    return _product(q, k.T), where, is_positive


def _collect(q, *refs, rule, offset):
    rows, target, k, columns, outputs = refs[:5], refs[5], refs[6], refs[7:12], refs[12:]
    size = len(q)

    @_at_first
    def _():
        diagonal = jnp.arange(size)[:, None] == jnp.arange(size)[None]
        positive = jnp.where(diagonal, _product(q[...], target[...].T), 0.0).sum(-1)
        _write(outputs, (*no_negatives(size), positive))

    *seen, positive = _read(outputs)
    scores, where, _ = _score_tile(q[...], k[...], _read(rows), _read(columns), rule, offset)
    _write(outputs[:5], add_tile(Negatives(*seen), scores, positive, where))


def _by_queries(q, *refs, rule, offset):
    rows, per_row, k, columns, output = refs[:5], refs[5:8], refs[8], refs[9:14], refs[14]

    @_at_first
    def _():
        output[...] = jnp.zeros(output.shape, jnp.float32)

    tile = _score_tile(q[...], k[...], _read(rows), _read(columns), rule, offset)
    w = derivatives(*tile, *_read(per_row)).astype(k.dtype)
    output[...] += _product(w, k[...])


def _by_keys(k, *refs, rule, offset):
    columns, q, rows, per_row = refs[:5], refs[5], refs[6:11], refs[11:14]
    weighted, output = refs[14:]

    @_at_first
    def _():
        output[...] = jnp.zeros(output.shape, jnp.float32)

    tile = _score_tile(q[...], k[...], _read(rows), _read(columns), rule, offset)
    w = derivatives(*tile, *_read(per_row)).astype(k.dtype)
    output[...] += _product(w.T, weighted[...])
