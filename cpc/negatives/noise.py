"""Noise distributions over classes, and how often a class is in a sample of one.

Probabilities are float64 on the host, one entry a class, and may hold zeros: such classes are never
drawn. `alias_table` makes them ready to draw from.

Removing accidental hits (`where & ~hits`) and drawing without replacement are two switches. NCE and
its ranking form are derived with hits kept; sampled softmax and retrieval remove them.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, Num

from cpc.types import ArrayLike, UserError


def probabilities(weights: Num[ArrayLike, "..."]) -> Float64[np.ndarray, " n"]:
    """Any weights, normalised: q_i = w_i / sum_j w_j.

    >>> probabilities(np.array([1, 3]))
    array([0.25, 0.75])
    """
    w = np.asarray(weights, np.float64)
    if w.ndim != 1 or not w.size:
        raise UserError(f"weights have shape {w.shape}: give one number a class")
    wrong = ~(np.isfinite(w) & (w >= 0))
    if wrong.any():
        place = int(wrong.argmax())
        raise UserError(
            f"the weight of class {place} is {w[place]}: weights must be finite, 0 or more"
        )
    highest = w.max()
    if highest == 0:
        raise UserError("all weights are 0: at least one class must be possible")
    w = w / highest  # their sum neither overflows nor underflows
    return w / w.sum()


def uniform(num_classes: int) -> Float64[np.ndarray, " n"]:
    """Every class alike: q_i = 1 / n.

    >>> uniform(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return probabilities(np.ones(max(num_classes, 0)))


def unigram(counts: Num[ArrayLike, "..."], alpha: float | int = 0.75) -> Float64[np.ndarray, " n"]:
    """Smoothed frequencies: q_i = f_i^alpha / sum_j f_j^alpha.

    alpha 1 is the corpus, 0 is uniform, 0.75 is word2vec's (Mikolov et al. 2013). A class that was
    never seen is never drawn, at any alpha.

    >>> unigram(np.array([16, 1, 1, 0]), 0.5)
    array([0.66666667, 0.16666667, 0.16666667, 0.        ])
    """
    if not np.isfinite(alpha):
        raise UserError(f"alpha is {alpha}: it must be finite, usually from 0 to 1")
    frequencies = probabilities(counts)
    seen = frequencies > 0
    powers = np.zeros_like(frequencies)
    logs = alpha * np.log(frequencies[seen])
    powers[seen] = np.exp(logs - logs.max())
    return probabilities(powers)


def log_uniform(num_classes: int) -> Float64[np.ndarray, " n"]:
    """Zipfian noise over classes sorted by falling frequency (TensorFlow's candidate sampler).

    q_i = log((i + 2) / (i + 1)) / log(n + 1)

    >>> log_uniform(3).round(4)
    array([0.5   , 0.2925, 0.2075])
    """
    return probabilities(np.log1p(1 / np.arange(1.0, num_classes + 1)))


def expected_count(
    q: float | Float[np.ndarray, "..."], num_draws: int, *, unique: bool
) -> float | Float[np.ndarray, "..."]:
    """Expected count Q of a class in a sample: what sampled losses subtract the log of.

    With replacement Q = K q. Without it, drawing until enough distinct classes are there has taken
    some number of tries (`draw_unique` says how many), and Q = 1 - (1 - q)^tries.

    >>> expected_count(np.array([0.5, 0.0]), 3, unique=True)
    array([0.875, 0.   ])
    """
    at_least_once = hit_rate(q, num_draws)
    return at_least_once if unique else num_draws * q


def solve_alpha(
    counts: Num[ArrayLike, "..."],
    minority: Int[np.ndarray, " _"] | Bool[np.ndarray, " n"],
    target: float | int,
    *,
    low: float | int = 0.0,
    high: float | int = 1.0,
) -> float:
    """The alpha at which `unigram` gives the minority classes a wanted mass.

    M(alpha) = sum of q over the minority,  dM/dalpha = M (E_minority ln f - E ln f) <= 0

    for classes that are rarer than all others, so that bisection finds the one solution.

    Args:
      counts: f, of every class.
      minority: their indices, or a mask.
      target: M, the fraction of draws that they shall get.
      low, high: the range of alpha.

    Raises:
      UserError: no alpha of the range gives that mass (the sentence says which masses there are);
        a minority that is empty, everything, or not the rarest; as `unigram`.

    Counts 9 and 1: the rare class has 1 / (1 + 9^alpha), which is a quarter at alpha 0.5.

    >>> round(solve_alpha(np.array([9, 1]), np.array([1]), 0.25), 9)
    0.5
    """
    counts = np.asarray(counts)
    rare = np.zeros(counts.shape, bool)
    rare[minority] = True
    if rare.all() or not rare.any():
        raise UserError(f"the minority has {rare.sum()} of {rare.size} classes: name some, not all")
    if counts[rare].max() > counts[~rare].min():
        raise UserError(
            f"a minority class has count {counts[rare].max()} and another class only "
            f"{counts[~rare].min()}: the minority must be the rarest classes"
        )

    def mass(alpha):
        return float(unigram(counts, alpha)[rare].sum())

    least, most = mass(high), mass(low)
    slack = 1e-12 * target  # the ends themselves are attainable
    if not least - slack <= target <= most + slack:
        raise UserError(
            f"a minority mass of {target} is out of reach: alpha from {low} to {high} gives "
            f"{least:.4g} to {most:.4g}"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) > target else (low, middle)
    return (low + high) / 2


def accidental_hits(
    targets: Int[ArrayLike, "m ..."], candidates: Int[ArrayLike, "... n"]
) -> Bool[Array, "m n"]:
    """Which candidates (n,) or (m, n) carry the id of a target, (m,) or (m, t), of the anchor.

    >>> accidental_hits(jnp.array([3, 5]), jnp.array([3, 5, 3, 2]))
    Array([[ True, False,  True, False],
           [False,  True, False, False]], dtype=bool)
    """
    fits = candidates.ndim == 1 or (candidates.ndim == 2 and len(candidates) == len(targets))
    if targets.ndim > 2 or not fits:
        raise UserError(
            f"targets of shape {targets.shape} and candidates of shape {candidates.shape} do not "
            "fit: give (m,) or (m, t) targets and (n,) or (m, n) candidates"
        )
    targets = jnp.reshape(targets, (len(targets), -1, 1))
    return (targets == jnp.atleast_2d(candidates)[:, None]).any(1)


def hit_rate(
    density: float | int | Float[np.ndarray, "..."], num_draws: int
) -> float | Float[np.ndarray, "..."]:
    """Chance that independent draws hold at least one item of a kind.

    P = 1 - (1 - rho)^K

    rho is the fraction of hard negatives in a pool, the probability of a class, or 1 / n for one
    latent among n: drawing 128 of 8 x 127 latents finds the positive for an eighth of the anchors.

    >>> round(float(hit_rate(1 / (8 * 127), 128)), 4)
    0.1184
    """
    if not np.all((np.asarray(density) >= 0) & (np.asarray(density) <= 1)):
        raise UserError(f"the chance of a hit in one draw is {density}: it must be from 0 to 1")
    if num_draws < 0:
        raise UserError(f"num_draws is {num_draws}: it must be 0 or more")
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0, and 0 log 0
        rate = -np.expm1(num_draws * np.log1p(-np.asarray(density, np.float64)))
    return np.where(np.equal(density, 1), float(num_draws > 0), rate)[()]
