"""Dynamic time warping of many pairs of tokens at a time.

Recursion, ties and normalisation are those of Libri-light (Kahn et al. 2020), so that
`cpc.evaluate.abx` reproduces its numbers.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cpc.types import ArrayLike

#: Tokens are padded to a power of two of frames, at least so many: few programs are compiled.
MIN_LENGTH = 8
#: Distances between frames that are computed at a time, which caches hold.
BLOCK_ENTRIES = 2**17


def dtw_distances(
    tokens: Sequence[Float[np.ndarray, "_ d"]],
    pairs: Int[np.ndarray, "p 2"],
    distance: str = "angular",
) -> Float[np.ndarray, "p 2"]:
    """Return the warped distances of pairs of tokens, first to second and second to first.

    The two differ only if paths of different length tie. Float32. For the distance between frames
    see `frame_distances`.
    """
    lengths = np.array([len(token) for token in tokens])
    size = filled_length(lengths)
    row = np.zeros(len(tokens), np.int64)
    stacks: dict[int, np.ndarray] = {}
    for length in np.unique(size).tolist():
        members = np.flatnonzero(size == length).tolist()
        row[members] = np.arange(len(members))
        stacks[length] = np.zeros((len(members), length, tokens[0].shape[1] + 1), np.float32)
        for number, i in enumerate(members):
            stacks[length][number, : lengths[i]] = unit_frames(tokens[i])
    # The longer token comes first: half the shapes.
    swapped = size[pairs[:, 0]] < size[pairs[:, 1]]
    ordered = np.where(swapped[:, None], pairs[:, ::-1], pairs)
    found = np.zeros((len(pairs), 2), np.float32)
    shapes = size[ordered]
    # On a CPU NumPy is many times as fast as XLA at small products and arc cosines.
    is_cpu = jax.default_backend() == "cpu"
    xp = np if is_cpu else jnp

    def compare(shape: list[int]) -> None:
        members = np.flatnonzero((shapes == shape).all(axis=1))
        block = max(1, BLOCK_ENTRIES // (shape[0] * shape[1]))
        parts = []
        for start in range(0, len(members), block):
            chosen = ordered[np.resize(members[start : start + block], block)]
            x, y = (
                xp.asarray(stacks[length][row[side]])
                for length, side in zip(shape, chosen.T, strict=True)
            )
            parts.append(np.asarray(dtw(frame_distances(x, y, distance), lengths[chosen])))
        found[members] = np.concatenate(parts)[: len(members)]

    # NumPy takes one core: on a CPU two shapes at a time, those with most entries first.
    each, number = np.unique(shapes, axis=0, return_counts=True)
    by_size = np.argsort(-each.prod(axis=1) * number, kind="stable")
    with ThreadPoolExecutor(2 if is_cpu else 1) as pool:
        list(pool.map(compare, each[by_size].tolist()))
    return np.where(swapped[:, None], found[:, ::-1], found)


def filled_length(length: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the lengths to which tokens are padded.

    >>> filled_length(np.array([3, 9, 64, 65, 129]))
    array([  8,  16,  64, 128, 256])
    """
    return 2 ** np.ceil(np.log2(np.maximum(length, MIN_LENGTH))).astype(int)


def unit_frames(frames: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "t d+1"]:
    """Return frames of length 1, with one more dimension for frames of zeros.

    A frame of zeros is at the greatest angular distance from all others and at none from another
    frame of zeros, as in Libri-light.
    """
    frames = np.asarray(frames, np.float32)
    square = (frames**2).sum(axis=1, keepdims=True)
    is_zero = square == 0
    # The first dimensions of another frame add at most 1, the last adds -2.
    length = np.sqrt(np.where(is_zero, 1, square))
    first = np.where(is_zero, frames.shape[1] ** -0.5, frames / length)
    return np.hstack([first, np.where(is_zero, -2e12, 1e-12)]).astype(np.float32)


def frame_distances(
    x: Float[ArrayLike, "p n d"], y: Float[ArrayLike, "p m d"], distance: str = "angular"
) -> Float[ArrayLike, "p n m"]:
    """Return the distance of each frame of x to each of y, both from `unit_frames`.

    "angular" is arccos(cos) / pi, in 0..1, which ZeroSpeech's tools call cosine. "euclidean" is
    between frames of length 1, as those tools normalise in every mode.
    """
    xp = x.__array_namespace__()  # NumPy's or JAX's
    cosine = xp.vecdot(x[:, :, None], y[:, None])  # no threads of BLAS, which small products stall
    if distance == "angular":
        return xp.arccos(xp.clip(cosine, -1, 1)) / np.float32(np.pi)
    if distance != "euclidean":
        raise ValueError(f"the distance of frames is {distance!r}: choose angular or euclidean")
    square = (x**2).sum(2)[:, :, None] + (y**2).sum(2)[:, None, :] - 2 * cosine
    return xp.sqrt(xp.maximum(square, 0))


@jax.jit
def dtw(
    distances: Float[ArrayLike, "p n m"], lengths: Int[ArrayLike, "p 2"]
) -> Float[Array, "p 2"]:
    """Return the cost of the cheapest path through each matrix, divided by the path's length.

    cost[i, j] = distance[i, j] + min(cost[i-1, j-1], cost[i, j-1], cost[i-1, j]), from [0, 0] to
    the last entry. The path is traced back from there; ties go to [i-1, j-1], then to [i, j-1]. The
    second column is that of the transposed matrix, whose ties go to [i-1, j] then. Diagonals i + j
    are computed one after the other, for all pairs. Distances are padded with any finite values.

    >>> dtw(np.array([[[0.0, 1.0], [1.0, 0.5]]]), np.array([[2, 2]])).tolist()
    [[0.25, 0.25]]
    """
    distances, lengths = jnp.asarray(distances, jnp.float32), jnp.asarray(lengths)
    p, n, m = distances.shape
    # Entry [i, j] of a matrix with n more columns is entry [i, i + j] of one with n - 1 more.
    beside = ((0, 0), (0, n), (0, 0))
    padded = jnp.pad(distances.transpose(1, 2, 0), beside, constant_values=jnp.inf)
    skewed = padded.reshape(n * (n + m), p)[: n * (n + m - 1)].reshape(n, n + m - 1, p)
    last_row, last_diagonal = lengths[:, 0] - 1, lengths.sum(axis=1) - 2

    def shifted(x, value):
        return jnp.concatenate([jnp.full((1, p), value, x.dtype), x[:-1]])

    def step(carry, at):
        (cost_1, *steps_1), (cost_2, *steps_2), found = carry
        diagonal, distance = at
        start = jnp.where(diagonal == 0, 0.0, jnp.inf)
        left, up, both = cost_1, shifted(cost_1, jnp.inf), shifted(cost_2, start)
        cost = distance + jnp.minimum(jnp.minimum(up, both), left)
        goes_both = (both <= left) & (both <= up)
        steps = []
        for goes_left, last, before in zip((left <= up, left < up), steps_1, steps_2, strict=True):
            straight = jnp.where(goes_left, last, shifted(last, 0))
            steps.append(1 + jnp.where(goes_both, shifted(before, 0), straight))
        ends = jnp.stack([jnp.take_along_axis(cost / x, last_row[None], axis=0)[0] for x in steps])
        found = jnp.where(diagonal == last_diagonal, ends, found)
        return ((cost, *steps), (cost_1, *steps_1), found), None

    zero = jnp.zeros((n, p), jnp.float32)
    nothing = (jnp.full_like(zero, jnp.inf), zero, zero)
    diagonals = (jnp.arange(n + m - 1), skewed.transpose(1, 0, 2))
    (_, _, found), _ = jax.lax.scan(
        step, (nothing, nothing, jnp.zeros((2, p), jnp.float32)), diagonals
    )
    return found.T
