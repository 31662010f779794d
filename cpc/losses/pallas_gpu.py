"""InfoNCE by tiles as Pallas kernels, by way of Triton: a GPU's form of `cpc.losses.tiles`.

Three kernels share the maths of the tiles: one collects each anchor's negatives, one makes the
derivatives by the queries and one those by the keys, 5 products in all. No score leaves the chip.
Rules are traced in the kernels: they may close over numbers, not over arrays.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
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

#: Bytes of a tile's vectors. Compiled for compute capabilities 8.0 and 9.0, the kernels fit the
#: shared memory with so many and not with twice as many.
TILE_BYTES = 32_768


def tile_size(width: int, dtype: Any) -> int:
    """Anchors and candidates of a tile, at most 64; 0 if not even the least, 16, fit the chip.

    >>> tile_size(256, jnp.bfloat16), tile_size(500, jnp.float32), tile_size(1024, jnp.float32)
    (64, 16, 0)
    """
    size = min(64, TILE_BYTES // (pl.next_power_of_2(width) * jnp.dtype(dtype).itemsize))
    return size if size >= 16 else 0


def score_on_gpu(
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    anchors: Latents,
    candidates: Latents,
    weights: Float[Array, " m"] | None,
    rule: NegativeRule,
    offset: int,
    *,
    size: int | None = None,
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
      size: anchors and candidates of a tile, a power of 2 of at least 16; `tile_size` by default.
      interpret: run on any platform, slowly.
    """
    (m, d), n = queries.shape, len(keys)
    size = size or tile_size(d, keys.dtype)
    index = find_targets(anchors, cut_latents(min(n, COLUMNS), keys, candidates)[1], offset)
    widen = [(0, 0), (0, max(16, pl.next_power_of_2(d)) - d)]  # Triton's sizes are powers of 2
    targets = _cut(size, jnp.pad(keys[jnp.maximum(index, 0)], widen), anchors)[0]
    q, rows = _cut(size, jnp.pad(queries, widen), anchors)
    k, columns = _cut(size, jnp.pad(keys, widen), candidates)
    padded = len(q)

    def tiles(*arrays):  # each program's own part
        block = [(size, *x.shape[1:]) for x in arrays]
        return [pl.BlockSpec(s, lambda i, s=s: (i,) + (0,) * (len(s) - 1)) for s in block]

    def call(kernel, own, whole, outputs):
        return pl.pallas_call(
            functools.partial(
                kernel, rule=rule, offset=offset, size=size, precision=HIGHEST if interpret else X3
            ),
            grid=(len(own[0]) // size,),
            in_specs=[*tiles(*own), *(pl.BlockSpec(x.shape, lambda i, r=x.ndim: (0,) * r)
                                      for x in whole)],
            out_specs=tiles(*outputs),
            out_shape=outputs,
            interpret=interpret,
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        )(*own, *whole)  # fmt: skip

    real, whole = (jax.ShapeDtypeStruct((padded,), x) for x in (jnp.float32, jnp.int32))
    outputs = [real, real, whole, whole, whole, real]
    *seen, positive = call(_collect, [q, *rows, targets], [k, *columns], outputs)
    seen, positive = Negatives(*(x[:m] for x in seen)), positive[:m]
    scores, sigma = finish(seen, positive, index >= 0)
    if weights is None:
        return scores, None, None
    pad = [(0, padded - m)]
    per_row = [jnp.pad(x, pad) for x in (seen.highest, seen.total, sigma)]
    of_queries = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    [dq] = call(_by_queries, [q, *rows, *per_row], [k, *columns], [of_queries])
    weighted = (jnp.pad(weights, pad)[:, None] * q).astype(q.dtype)
    of_keys = jax.ShapeDtypeStruct(k.shape, jnp.float32)
    [dk] = call(_by_keys, [k, *columns], [q, *rows, *per_row, weighted], [of_keys])
    return scores, dq[:m, :d].astype(queries.dtype), dk[:n, :d]


def _cut(size, x, latents):
    """Padded to whole tiles; the latents as five arrays of int32."""
    x, latents = cut_latents(size, x, latents)
    flat = jax.tree.map(lambda p: p.ravel(), latents)
    return x.reshape(-1, x.shape[-1]), [*flat.positions, flat.exists.astype(jnp.int32)]


def _part(refs, i, size):
    return [ref[pl.ds(i * size, size)] for ref in refs]


#: Three products of TF32 make one of float32. Without tensor cores, Triton unrolls a float32
#: product into more code than its compiler ends with in minutes.
X3 = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
HIGHEST = jax.lax.Precision.HIGHEST


def product(a: Array, b: Array, precision: Any = HIGHEST) -> Array:
    """Float32 sums, and no float32 rounded to the GPU's TF32 or the TPU's bfloat16."""
    # Mosaic refuses to be precise about what is half precision already.
    precision = precision if a.dtype == jnp.float32 else None
    return jnp.matmul(a, b, preferred_element_type=jnp.float32, precision=precision)


def score_tile(
    q: Array,
    k: Array,
    rows: Any,
    columns: Any,
    rule: NegativeRule,
    offset: Any,
    precision: Any = HIGHEST,
) -> Any:
    """Scores, which are negatives and which the positive; latents as five arrays (size,)."""
    # Existence stays an integer until it is a matrix: Mosaic turns no vector of booleans.
    rows, columns = (Latents(Position(*x[:4]), x[4]) for x in (rows, columns))
    is_positive = find_positives(rows, columns, offset) != 0
    where = (find_negatives(rows, columns, rule, offset) != 0) & ~is_positive
    return product(q, k.T, precision), where, is_positive


def _collect(q, *refs, rule, offset, size, precision):
    rows, target, k, columns, outputs = refs[:5], refs[5], refs[6], refs[7:12], refs[12:]
    q, rows = q[...], [x[...] for x in rows]
    diagonal = jnp.arange(size)[:, None] == jnp.arange(size)[None]
    positive = jnp.where(diagonal, product(q, target[...].T, precision), 0.0).sum(-1)

    def one_tile(j, seen):
        [part] = _part([k], j, size)
        others = _part(columns, j, size)
        scores, where, _ = score_tile(q, part, rows, others, rule, offset, precision)
        return add_tile(seen, scores, positive, where)

    seen = jax.lax.fori_loop(0, k.shape[0] // size, one_tile, no_negatives(size))
    for output, x in zip(outputs, (*seen, positive), strict=True):
        output[...] = x


def _by_queries(q, *refs, rule, offset, size, precision):
    own, k, columns, output = [x[...] for x in refs[:8]], refs[8], refs[9:14], refs[14]
    q, rows, per_row = q[...], own[:5], own[5:]

    def one_tile(j, dq):
        [part] = _part([k], j, size)
        tile = score_tile(q, part, rows, _part(columns, j, size), rule, offset, precision)
        return dq + product(derivatives(*tile, *per_row).astype(part.dtype), part, precision)

    steps = k.shape[0] // size
    output[...] = jax.lax.fori_loop(0, steps, one_tile, jnp.zeros(q.shape, jnp.float32))


def _by_keys(k, *refs, rule, offset, size, precision):
    columns, (q, *others), weighted, output = refs[:5], refs[5:14], refs[14], refs[15]
    k, columns = k[...], [x[...] for x in columns]

    def one_tile(i, dk):
        part, *own = _part([q, *others], i, size)
        tile = score_tile(part, k, own[:5], columns, rule, offset, precision)
        w = derivatives(*tile, *own[5:]).astype(k.dtype)
        return dk + product(w.T, weighted[pl.ds(i * size, size)], precision)

    steps = q.shape[0] // size
    output[...] = jax.lax.fori_loop(0, steps, one_tile, jnp.zeros(k.shape, jnp.float32))
