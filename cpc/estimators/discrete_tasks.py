"""Tasks on finite alphabets: Markov chains, static speakers, copies, noisy copies."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from cpc.estimators.tasks import Task
from cpc.types import UserError


def discrete_task(name: str, joint: Float[np.ndarray, "p q"]) -> Task:
    """Return pairs of one-hot vectors drawn from a table of joint probabilities.

    Raises:
      UserError: a table with negative entries, or one that does not sum to 1.

    >>> copy = discrete_task("copy", np.eye(4) / 4)  # I = ln 4
    >>> x, y = copy.sample(jax.random.key(0), 3)
    >>> round(copy.mutual_information, 4), bool((x == y).all())
    (1.3863, True)
    """
    if (joint < 0).any() or abs(joint.sum() - 1) > 1e-6:
        raise UserError(
            f"joint sums to {joint.sum():g} with least entry {joint.min():g}: probabilities are 0 "
            "or more and sum to 1"
        )
    table = jnp.asarray(_log_ratio(joint), jnp.float32)
    log_joint = jnp.asarray(_log(joint), jnp.float32).ravel()
    p, q = joint.shape

    def sample(rng, n):
        drawn = jax.random.categorical(rng, log_joint, shape=(n,))
        x, y = jnp.divmod(drawn, q)
        return jax.nn.one_hot(x, p, dtype=jnp.float32), jax.nn.one_hot(y, q, dtype=jnp.float32)

    def log_ratio(x, y):
        return table[x.argmax(1)[:, None], y.argmax(1)]

    return Task(name, discrete_information(joint), sample, log_ratio)


def discrete_information(joint: Float[np.ndarray, "p q"]) -> float:
    """Return I = sum_xy p(x, y) ln [ p(x, y) / (p(x) p(y)) ] in float64, with 0 ln 0 = 0.

    >>> round(discrete_information(np.array([[0.5, 0.0], [0.0, 0.5]])), 4)
    0.6931
    """
    occurs = joint > 0
    return float(np.sum(joint[occurs] * _log_ratio(joint)[occurs]))


def one_hot_task(num_classes: int) -> Task:
    """Return a class and its copy: I = ln(num_classes)."""
    if num_classes < 1:
        raise UserError(f"num_classes is {num_classes}: a copy needs 1 class or more")
    return discrete_task(f"copy-{num_classes}", np.eye(num_classes) / num_classes)


def binary_symmetric_task(p: float | int) -> Task:
    """Return a fair bit and its copy, right with probability p.

    I = ln 2 + p ln p + (1 - p) ln(1 - p).

    >>> round(binary_symmetric_task(0.8).mutual_information, 6)
    0.192745
    """
    if not 0 <= p <= 1:
        raise UserError(f"p is {p}: a probability lies between 0 and 1")
    return discrete_task(f"binary-{p:g}", np.array([[p, 1 - p], [1 - p, p]]) / 2)


def markov_task(
    chain: Float[np.ndarray, "p p"],
    k: int,
    *,
    emissions: Float[np.ndarray, "p q"] | None = None,
    num_speakers: int = 1,
) -> Task:
    """Return two times of a hidden Markov chain, k apart, with a constant speaker.

    x is the emission at s_t and the speaker, y the emission at s_(t+k) and the speaker: I = ln S +
    I(emission_t; emission_(t+k)), for S equally likely speakers independent of the chain. As k
    grows the chain forgets and ln S stays; negatives of the same speaker leave the chain's part.

    Args:
      chain: transition probabilities, rows sum to 1.
      k: offset, 1 or more.
      emissions: rows are emission probabilities of a state, sum to 1; the state itself by default.
      num_speakers: S.

    Raises:
      UserError: rows that do not sum to 1, an offset or a number of speakers below 1.

    A chain that forgets at once leaves the speaker:

    >>> task = markov_task(np.full((3, 3), 1 / 3), k=1, num_speakers=4)
    >>> round(task.mutual_information, 4)  # ln 4
    1.3863
    """
    emissions = np.eye(len(chain)) if emissions is None else emissions
    for what, table in (("chain", chain), ("emissions", emissions)):
        if (table < 0).any() or np.abs(table.sum(1) - 1).max() > 1e-6:
            raise UserError(f"a row of {what} is no distribution: rows are 0 or more, sum to 1")
    if min(k, num_speakers) < 1:
        raise UserError(f"k is {k} and num_speakers {num_speakers}: both must be 1 or more")
    later = np.linalg.matrix_power(chain, k)
    shown = emissions.T @ (stationary(chain)[:, None] * later) @ emissions
    name = f"markov-{len(chain)}-{num_speakers}-{k}"
    return discrete_task(name, np.kron(np.eye(num_speakers) / num_speakers, shown))


def stationary(chain: Float[np.ndarray, "p p"]) -> Float[np.ndarray, " p"]:
    """Return the stationary distribution of a chain: pi P = pi, float64."""
    equations = np.vstack([chain.T - np.eye(len(chain)), np.ones(len(chain))])
    found = np.linalg.lstsq(equations, np.r_[np.zeros(len(chain)), 1.0], rcond=None)[0]
    found = np.where(found > 1e-12, found, 0.0)  # a state that nothing enters
    return found / found.sum()


def _log_ratio(joint):
    marginals = joint.sum(1, keepdims=True) * joint.sum(0)
    return _log(np.divide(joint, marginals, out=np.zeros_like(joint), where=marginals > 0))


def _log(p):
    return np.log(p, out=np.full_like(p, -np.inf), where=p > 0)
