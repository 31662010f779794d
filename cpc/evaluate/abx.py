"""The ABX test: whether a token X is closer to a token A of the same phone than to B of another.

This is the machine ABX of Libri-light and ZeroSpeech (Schatz et al. 2013; Kahn et al. 2020). It
uses the triples, random draws and averages of zerospeech-libriabx2 0.9.8 and reproduces its
results. Dynamic time warping uses the recursion, tie-breaker and normalisation of Libri-light.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cpc.evaluate.accuracy import bootstrap_interval
from cpc.results import Outcomes, Score, digest
from cpc.types import ArrayLike, Item, UserError

#: Maximum number of frames by which a token may extend past the features of its recording.
MAX_MISSING = 10
#: Tokens are padded to a power of two of at least this many frames, so that few programs compile.
MIN_LENGTH = 8
#: Number of frame distances that are computed at a time and fit into the CPU caches.
BLOCK_ENTRIES = 2**17


class Cell(NamedTuple):
    """A comparison between one phone's tokens and another phone's tokens, with one error rate."""

    pair: tuple[str, str]
    """The phone of A and X, and the phone of B."""
    speaker: str
    """Speaker of A and B."""
    a: tuple[int, ...]
    """Token indices of A. `b` and `x` are also token indices."""
    b: tuple[int, ...]
    x: tuple[int, ...]
    """Equal to `a` if X has the same speaker. No token is compared with itself."""


def cut_tokens(
    items: Sequence[Item],
    features: Mapping[str, Float[np.ndarray, "_ _"]],
    frame_seconds: float,
    *,
    lose_last_frame: bool = False,
    source: str = "items",
) -> list[Float[np.ndarray, "_ _"]]:
    """Return, for each item, the frames whose middle is within the item.

    An item can have no frames. The middle of frame i is at (i + 1/2) `frame_seconds`. A time is
    multiplied by the frame rate and then rounded, as in libriabx2. `lose_last_frame` drops the
    last frame of each token, as Libri-light and zerospeech-libriabx2 do. Errors begin with
    `source`, the origin of the items.
    """
    tokens, rate_hz = [], 1 / frame_seconds
    for item in items:
        where = f"{source}: {item.file} from {item.onset:g} s"
        frames = features.get(item.file)
        if frames is None:
            raise UserError(f"{where} has no features: embed the recording, or remove the item")
        start = max(0, math.ceil(rate_hz * item.onset - 0.5))
        stop = math.floor(rate_hz * item.offset - 0.5) + (not lose_last_frame)
        if start >= len(frames) or stop > len(frames) + MAX_MISSING:
            raise UserError(
                f"{where} to {item.offset:g} s exceeds the recording's {len(frames)} features of "
                f"{1000 * frame_seconds:g} ms: check the recording and the frame rate"
            )
        tokens.append(frames[start : max(start, stop)])
    return tokens


def make_cells(
    items: Sequence[Item],
    mask: Sequence[bool],
    *,
    across: bool = False,
    in_context: bool = True,
    max_tokens: int = 10,
    max_speakers: int = 5,
    seed: int = 3459,
) -> Iterator[Cell]:
    """Yield the cells for items, with the order and the random draws of zerospeech-libriabx2.

    Args:
        mask: whether each token has frames.
        across: take X from another speaker than A and B. By default, X is another token from the
            set of A.
        in_context: require the same phones before and after A, B and X.
        max_tokens: maximum number of tokens per phone in a cell. Larger sets are subsampled
            independently for each cell.
        max_speakers: maximum number of X speakers for each A.
    """
    rng, sets = random.Random(seed), group_tokens(items, mask, in_context)
    others: dict[tuple, list[str]] = {}
    for context, speaker, phone in sets:
        others.setdefault((context, phone), []).append(speaker)

    def take(*three):
        tokens = sets[three]
        return tuple(rng.sample(tokens, max_tokens) if len(tokens) > max_tokens else tokens)

    def speakers_of_x(context, speaker, phone):
        if not across:
            return [speaker] if len(sets[context, speaker, phone]) > 1 else []
        speakers = [other for other in others[context, phone] if other != speaker]
        return rng.sample(speakers, max_speakers) if len(speakers) > max_speakers else speakers

    def make_cell(context, speaker, other, first, second):
        if across:
            a, b = take(context, speaker, first), take(context, speaker, second)
            return Cell((first, second), speaker, a, b, take(context, other, first))
        b = take(context, speaker, second)  # the reference draws in this order
        a = take(context, speaker, first)
        return Cell((first, second), speaker, a, b, a)

    for (context, speaker), group in itertools.groupby(sets, key=lambda three: three[:2]):
        phones = [phone for _, _, phone in group]
        for first in phones if len(phones) > 1 else ():
            speakers = speakers_of_x(context, speaker, first)
            for other, second in itertools.product(speakers, phones):
                if second != first:
                    yield make_cell(context, speaker, other, first, second)


def group_tokens(
    items: Sequence[Item], mask: Sequence[bool], in_context: bool
) -> dict[tuple[tuple[str, ...], str, str], list[int]]:
    """Group tokens by context, speaker and phone, in order of first appearance.

    The random draws of zerospeech-libriabx2 depend on this order.
    """
    names = [
        ((item.before, item.after) if in_context else (), item.speaker, item.phone)
        for item in items
    ]
    order = [
        {name: i for i, name in enumerate(dict.fromkeys(own))} for own in zip(*names, strict=True)
    ]
    places = [tuple(own[name] for own, name in zip(order, three, strict=True)) for three in names]
    kept = sorted((i for i, has in enumerate(mask) if has), key=places.__getitem__)
    return {three: list(own) for three, own in itertools.groupby(kept, key=names.__getitem__)}


def cell_errors(
    tokens: Sequence[Float[np.ndarray, "_ d"]], cells: Sequence[Cell], distance: str = "angular"
) -> list[Float[np.ndarray, " x"]]:
    """Return, for each X, the fraction of pairs (A, B) with an error; a tie is half an error."""
    asked = [_pairs(cell) for cell in cells]
    ends = np.cumsum([len(pairs) for pairs in asked])
    pairs = np.concatenate(asked)
    number = np.sort(pairs, axis=1) @ [len(tokens), 1]
    unique, index = np.unique(number, return_inverse=True)
    both = dtw_distances(tokens, np.stack(np.divmod(unique, len(tokens)), axis=1), distance)
    found = both[index, (pairs[:, 0] > pairs[:, 1]).astype(int)]
    return [_errors(cell, own) for cell, own in zip(cells, np.split(found, ends[:-1]), strict=True)]


def _pairs(cell):
    # Pairs (X, B) are followed by pairs (X, A). If X and A are the same set, each pair occurs once.
    same, product = cell.x == cell.a, itertools.product
    to_a = itertools.combinations(cell.a, 2) if same else product(cell.x, cell.a)
    return np.array([*product(cell.x, cell.b), *to_a], np.int64)


def _errors(cell, distances):
    num_x, num_a, num_b = len(cell.x), len(cell.a), len(cell.b)
    to_b, to_a = np.split(distances, [num_x * num_b])
    to_b, num_others = to_b.reshape(num_x, 1, num_b), num_a * num_b
    if cell.x == cell.a:
        square = np.full((num_a, num_a), np.inf, np.float32)  # excludes a token as its own A
        square[np.triu_indices(num_a, 1)] = to_a
        to_a, num_others = np.minimum(square, square.T), (num_a - 1) * num_b
    to_a = to_a.reshape(num_x, num_a, 1)
    right = (to_a < to_b).sum((1, 2)) + 0.5 * (to_a == to_b).sum((1, 2))
    return 1 - right / num_others


def cell_weights(cells: Sequence[Cell]) -> Float[np.ndarray, " cells"]:
    """Return each cell's weight in the ABX error; the weights sum to 1.

    The error is an unweighted average over contexts and speakers of X, then over speakers of A and
    B, and then over ordered pairs of phones.
    """
    cells_of = Counter((cell.pair, cell.speaker) for cell in cells)
    speakers_of = Counter(pair for pair, _ in cells_of)
    counts = [speakers_of[cell.pair] * cells_of[cell.pair, cell.speaker] for cell in cells]
    return 1 / (len(speakers_of) * np.array(counts))


def abx_score(
    items: Sequence[Item],
    tokens: Sequence[Float[np.ndarray, "_ d"]],
    cells: Sequence[Cell],
    *,
    data: str,
    features: str,
    method: str,
    distance: str = "angular",
) -> Score:
    """Return the ABX error with its interval and each utterance's contribution.

    `tokens` are from `cut_tokens`, `cells` from `make_cells`. Only utterances with an X contribute.
    """
    errors, weights = cell_errors(tokens, cells, distance), cell_weights(cells)
    each = np.concatenate(
        [np.full(len(cell.x), w / len(cell.x)) for cell, w in zip(cells, weights, strict=True)]
    )
    names, number = np.unique(
        [items[x].file for cell in cells for x in cell.x], return_inverse=True
    )
    sums, counts = (np.bincount(number, each * by) for by in (np.concatenate(errors), 1.0))
    low, high = bootstrap_interval(sums, counts)
    return Score(
        "ABX", data, "phone pair", features, method, "ABX error", float(sums.sum()), low, high, 0.5,
        higher_is_better=False, num_test=len({cell.pair for cell in cells}),
        setting=f"{distance}, {len(cells):,} cells",
        outcomes=Outcomes(sums, counts, digest(method, names, [len(cells)])),
    )  # fmt: skip


def dtw_distances(
    tokens: Sequence[Float[np.ndarray, "_ d"]],
    pairs: Int[np.ndarray, "p 2"],
    distance: str = "angular",
) -> Float[np.ndarray, "p 2"]:
    """Return each token pair's dynamic time warping distance in both directions.

    The two directions differ only if paths of different length tie. See `frame_distances` for the
    choices of `distance`.
    """
    lengths = np.array([len(token) for token in tokens])
    size = 2 ** np.ceil(np.log2(np.maximum(lengths, MIN_LENGTH))).astype(int)
    row = np.zeros(len(tokens), np.int64)
    stacks: dict[int, np.ndarray] = {}
    for length in np.unique(size).tolist():
        members = np.flatnonzero(size == length).tolist()
        row[members] = np.arange(len(members))
        stacks[length] = np.zeros((len(members), length, tokens[0].shape[1] + 1), np.float32)
        for number, i in enumerate(members):
            stacks[length][number, : lengths[i]] = unit_frames(tokens[i])
    # Putting the longer token first halves the number of compiled shapes.
    swapped = size[pairs[:, 0]] < size[pairs[:, 1]]
    ordered = np.where(swapped[:, None], pairs[:, ::-1], pairs)
    found = np.zeros((len(pairs), 2), np.float32)
    shapes = size[ordered]
    # On a CPU, NumPy is many times faster than XLA at small products and arc cosines.
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

    # NumPy uses one core, so two shapes are computed at a time on a CPU, the largest first.
    each, number = np.unique(shapes, axis=0, return_counts=True)
    by_size = np.argsort(-each.prod(axis=1) * number, kind="stable")
    with ThreadPoolExecutor(2 if is_cpu else 1) as pool:
        list(pool.map(compare, each[by_size].tolist()))
    return np.where(swapped[:, None], found[:, ::-1], found)


def unit_frames(frames: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "t d+1"]:
    """Scale frames to length 1, and append a dimension that marks frames of zeros.

    As in Libri-light, a frame of zeros has the maximum angular distance from all other frames and
    distance 0 from another frame of zeros.
    """
    frames = np.asarray(frames, np.float32)
    square = (frames**2).sum(axis=1, keepdims=True)
    is_zero = square == 0
    # In the product with another frame, the first dimensions add at most 1 and the last adds -2.
    length = np.sqrt(np.where(is_zero, 1, square))
    first = np.where(is_zero, frames.shape[1] ** -0.5, frames / length)
    return np.hstack([first, np.where(is_zero, -2e12, 1e-12)]).astype(np.float32)


def frame_distances(
    x: Float[ArrayLike, "p n d"], y: Float[ArrayLike, "p m d"], distance: str = "angular"
) -> Float[ArrayLike, "p n m"]:
    """Return the distance between each frame of x and each frame of y, both from `unit_frames`.

    "angular" is arccos(cos) / pi, between 0 and 1, which ZeroSpeech's tools call cosine. These
    tools normalise frames in every mode, so "euclidean" is the distance between normalised frames.
    """
    xp = x.__array_namespace__()  # NumPy or JAX
    cosine = xp.vecdot(x[:, :, None], y[:, None])  # BLAS threads would slow down small products
    if distance == "angular":
        return xp.arccos(xp.clip(cosine, -1, 1)) / np.float32(np.pi)
    if distance != "euclidean":
        raise ValueError(f"distance {distance!r} is unknown: choose angular or euclidean")
    square = (x**2).sum(2)[:, :, None] + (y**2).sum(2)[:, None, :] - 2 * cosine
    return xp.sqrt(xp.maximum(square, 0))


@jax.jit
def dtw(
    distances: Float[ArrayLike, "p n m"], lengths: Int[ArrayLike, "p 2"]
) -> Float[Array, "p 2"]:
    """Return the cost of the cheapest path through each matrix, divided by the path's length.

    cost[i, j] = distance[i, j] + min(cost[i-1, j-1], cost[i, j-1], cost[i-1, j]), from [0, 0] to
    the last entry. The path is traced back from the last entry. Ties go to [i-1, j-1] first and to
    [i, j-1] second. The second column of the result is for the transposed matrices, where the
    second choice is [i-1, j]. Diagonals i + j are computed one after the other for all pairs at
    once. Distances may be padded with any finite values.

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
