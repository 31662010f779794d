"""All samples of a few classes, by how often each class is in them."""

import itertools

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln


def count_draws(
    num: int, q: Float[np.ndarray, " v"]
) -> tuple[Int[np.ndarray, "r v"], Float[np.ndarray, " r"]]:
    """Return how often each class is among `num` draws from q > 0, and how likely that is.

    A loss does not see the order of its negatives, and c copies of one weigh as much as a score
    higher by log c: the counts are all that an expectation needs.

    >>> counts, probability = count_draws(2, np.array([0.5, 0.5]))
    >>> counts.tolist(), probability.round(3).tolist()
    ([[0, 2], [1, 1], [2, 0]], [0.25, 0.5, 0.25])
    """
    v = len(q)
    bars = np.array(list(itertools.combinations(range(num + v - 1), v - 1)), int)
    bars = bars.reshape(-1, v - 1)
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, num + v - 1)))
    counts = np.diff(edges, axis=1) - 1
    log_p = gammaln(num + 1) + (counts * np.log(q) - gammaln(counts + 1)).sum(1)
    return counts, np.exp(log_p)
