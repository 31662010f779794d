"""Nested cross-validation of logistic regression, the standard probe for sentence features.

See Kiros et al. (2015, "Skip-Thought Vectors", section 3.4) and van den Oord et al. (2018, section
3.3).
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special
from jaxtyping import Bool, Float, Int

from cpc.evaluate.convex import as_probe, check_grid, put_rows, solve_path
from cpc.evaluate.probe import predict
from cpc.types import UserError

#: answer(rows) returns log-probabilities (rows, classes).
Answer: TypeAlias = Callable[[Any], np.ndarray]
#: fit(rows, labels, number of classes, l2s) yields the l2, the `Answer`, and whether the fit
#: converged for each l2, the strongest first.
FitPath: TypeAlias = Callable[
    [Any, np.ndarray, int, Sequence[float]], Iterator[tuple[float, Answer, bool]]
]
L2S = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)


class CrossValidated(NamedTuple):
    """The result of a nested cross-validation."""

    items: Int[np.ndarray, " n"]
    """Indices of the rows that are in a fold."""
    correct: Bool[np.ndarray, " n"]
    """Whether each row in `items` is classified correctly by the fit without its fold."""
    l2s: tuple[float, ...]
    """The l2 chosen for each fold."""
    num_unconverged: int
    """Number of folds whose final fit did not converge."""


def cross_validate(
    fit: FitPath,
    x: Any,
    labels: Int[np.ndarray, " n"],
    *,
    l2s: Sequence[float] = L2S,
    num_folds: int = 10,
) -> CrossValidated:
    """Test logistic regression on each fold in turn, with an l2 chosen without the tested fold.

    The tested fold is classified by a fit on all other folds. To choose the l2, the next fold is
    held out and models are fitted on the remaining folds, with the strongest l2 first, until the
    nats on the held-out fold rise. Folds are random and of equal size, so up to `num_folds` - 1
    rows are left out.

    Args:
        fit: `fit_dense` or `fit_sparse`.
        x: an array or a sparse matrix with one row per item.
        l2s: weights of the penalty `(l2 / 2) |W|^2`, which is added to the mean nats.
    """
    check_grid(l2s)
    size, num_classes = len(labels) // num_folds, int(labels.max(initial=0)) + 1
    if num_folds < 3 or size < 1 or len(np.unique(labels)) < 2:
        raise UserError(
            "cross-validation needs at least 3 folds, 2 classes and one row per fold (got "
            f"{len(labels)} rows, {len(np.unique(labels))} classes and {num_folds} folds)"
        )
    order = np.random.default_rng(0).permutation(len(labels))[: size * num_folds]
    folds, right, chosen, converged = order.reshape(num_folds, size), [], [], []
    for number, fold in enumerate(folds):
        held = folds[(number + 1) % num_folds]
        rest = np.setdiff1d(order, fold, assume_unique=True)
        kept = np.setdiff1d(rest, held, assume_unique=True)
        best, fewest = max(l2s), np.inf
        for l2, answer, _ in fit(x[kept], labels[kept], num_classes, l2s):
            nats = -answer(x[held])[np.arange(size), labels[held]].mean()
            if nats >= fewest:
                break
            best, fewest = l2, nats
        path = fit(x[rest], labels[rest], num_classes, [l2 for l2 in l2s if l2 >= best])
        *_, (_, answer, is_converged) = path
        right.append(answer(x[fold]).argmax(axis=1) == labels[fold])
        chosen.append(best)
        converged.append(is_converged)
    return CrossValidated(order, np.concatenate(right), tuple(chosen), num_folds - sum(converged))


def fit_dense(
    x: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    num_classes: int,
    l2s: Sequence[float],
) -> Iterator[tuple[float, Answer, bool]]:
    """Yield a fit to standardised features for each l2; each starts at the previous optimum.

    See `cpc.evaluate.convex` for the method.
    """
    rows, mean, std = put_rows(x, labels)
    for found in solve_path(rows, num_classes, l2s):
        answer = functools.partial(predict, as_probe(found, mean, std))
        yield found.l2, answer, found.converged


def fit_sparse(
    x: Any, labels: Int[np.ndarray, " n"], num_classes: int, l2s: Sequence[float]
) -> Iterator[tuple[float, Answer, bool]]:
    """Yield an L-BFGS fit to tf-idf word counts for each l2; each starts at the previous optimum.

    A word count n becomes log(1 + n) log(rows / rows with the word), and rows are scaled to length
    1. Frequencies are computed from the training rows only. x is a scipy.sparse.csr_array.
    """
    num_rows, num_words = x.shape
    has = np.bincount(x.nonzero()[1], minlength=num_words)
    weight_of_word = np.log((1 + num_rows) / (1 + has))

    def scaled(rows: Any) -> Any:
        made = rows.astype(np.float64).log1p().multiply(weight_of_word).tocsr()
        lengths = np.sqrt(made.multiply(made).sum(axis=1))
        return scipy.sparse.diags_array(1 / np.maximum(np.ravel(lengths), 1e-12)) @ made

    rows, one_hot = scaled(x), np.eye(num_classes)[labels]
    shape = num_words + 1, num_classes
    solution = np.zeros(shape)

    def loss(flat: np.ndarray, l2: float) -> tuple[float, np.ndarray]:
        weight, bias = flat.reshape(shape)[:-1], flat.reshape(shape)[-1]
        log_p = scipy.special.log_softmax(rows @ weight + bias, axis=1)
        wrong = (np.exp(log_p) - one_hot) / len(one_hot)
        gradient = np.concatenate([rows.T @ wrong + l2 * weight, wrong.sum(axis=0)[None]])
        value = -(one_hot * log_p).sum() / len(one_hot) + l2 / 2 * np.square(weight).sum()
        return float(value), gradient.ravel()

    for l2 in sorted(l2s, reverse=True):
        found = scipy.optimize.minimize(
            loss, solution.ravel(), (l2,), method="L-BFGS-B", jac=True, options={"maxiter": 200}
        )
        solution = found.x.reshape(shape)

        def answer(rows: Any, solution: np.ndarray = solution) -> np.ndarray:
            return scipy.special.log_softmax(scaled(rows) @ solution[:-1] + solution[-1], axis=1)

        yield l2, answer, bool(found.success)


def bag_of_words(
    sentences: Sequence[Int[np.ndarray, " _"]], num_words: int
) -> scipy.sparse.csr_array:
    """Count each word in each sentence, and return a sparse matrix (sentences, num_words).

    >>> bag_of_words([np.array([1, 2, 1]), np.array([], int)], 3).toarray()
    array([[0., 2., 1.],
           [0., 0., 0.]])
    """
    rows = np.repeat(np.arange(len(sentences)), [len(one) for one in sentences])
    columns = np.concatenate([np.zeros(0, int), *sentences])
    shape = len(sentences), num_words
    return scipy.sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=shape).tocsr()
