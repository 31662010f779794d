"""Where noise words come from: a table, counts so far, the word before, a network, the batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cpc import negatives
from cpc.negatives.candidates import check_distinct
from experiments.command.config import Config


class Noise(NamedTuple):
    """A noise as the step uses it."""

    is_conditional: bool
    """Whether it follows the context, and so is drawn for each place."""
    init: dict[str, Any]
    """What it carries from step to step."""
    dense: dict[str, Any]
    """Parameters of its own."""
    draw: Callable[..., tuple[Any, Callable[[Any], Any]]]
    """draw(rng, state, dense, context (t,), own (t,), (g, n)) -> ids (g, n), and log_q(words) of
    arrays that have a row for each place, or for each group where q is fixed."""
    learn: Callable[..., tuple[dict[str, Any], Any]]
    """learn(state, dense, context, labels) -> state, and the loss of its own parameters."""


def fixed_q(objective: Config, counts: np.ndarray) -> np.ndarray:
    """Return the probabilities of a noise that is fixed before training."""
    name, num = objective.noise, len(counts)
    if name == "uniform":
        return negatives.uniform(num)
    if name == "log_uniform":
        return negatives.log_uniform(num)
    if name == "minority":
        seen = np.sort(counts[counts > 0])
        rarest = np.arange(max(1, int(objective.minority * len(seen))))
        alpha = negatives.solve_alpha(seen, rarest, objective.minority_mass)
        return negatives.unigram(counts, alpha)
    return negatives.unigram(counts, objective.alpha)


def make_noise(objective: Config, counts: np.ndarray, tokens: Any, is_start: Any) -> Noise:
    """Return the noise of a config."""
    name, num = objective.noise, len(counts)
    if name == "learned_unigram":
        return _learned(num)
    if name == "bigram":
        return _bigram(objective, counts, tokens, is_start)
    if name == "proposal":
        return _proposal(objective, num)
    q = fixed_q(objective, counts)
    if name == "batch":
        q = negatives.unigram(counts, 1.0)  # words of the text are drawn as the text has them
    log_table = jnp.log(jnp.maximum(jnp.asarray(q, jnp.float32), 1e-30))
    if objective.unique:
        check_distinct(objective.draws or objective.k, int((q > 0).sum()))
    table = negatives.AliasTable(*map(jnp.asarray, negatives.alias_table(q)))

    def take_own(rng, state, dense, context, own, shape):
        return own.reshape(shape[0], -1), lambda words: log_table[words]

    if name == "batch":
        return Noise(False, {}, {}, take_own, _nothing)

    def draw_table(rng, state, dense, context, own, shape):
        if not objective.unique:
            return negatives.draw(rng, table, shape), lambda words: log_table[words]
        g, n = shape
        ids, tries = jax.vmap(lambda key: negatives.draw_unique(key, table, n))(
            jax.random.split(rng, g)
        )

        def log_expected(words):  # log of Q / n, so that what adds log n is right
            rows = jnp.repeat(tries, len(words) // g)[:, None].astype(jnp.float32)
            chance = -jnp.expm1(rows * jnp.log1p(-jnp.exp(log_table[words])))
            return jnp.log(jnp.maximum(chance, 1e-30) / n)

        return ids, log_expected

    return Noise(False, {}, {}, draw_table, _nothing)


def _nothing(state, dense, context, labels):
    return state, 0.0


def _learned(num):
    def draw_counts(rng, state, dense, context, own, shape):
        upto = jnp.cumsum(state["counts"])
        at = jax.random.randint(rng, shape, 0, upto[-1])
        log_q = jnp.log(state["counts"] / upto[-1])
        return jnp.searchsorted(upto, at, side="right"), lambda words: log_q[words]

    def learn(state, dense, context, labels):
        counts = negatives.observe(state["counts"], labels)
        # Draws need a sum below 2^31, and a step adds up to 2^27: old words count half from here.
        is_full = counts.sum(dtype=jnp.float32) > 2.0**30
        return {"counts": jnp.where(is_full, (counts + 1) // 2, counts)}, 0.0

    return Noise(False, {"counts": jnp.ones(num, jnp.int32)}, {}, draw_counts, learn)


def _bigram(objective, counts, tokens, is_start):
    unigram = negatives.unigram(counts, objective.alpha)
    noise = negatives.bigrams(np.asarray(tokens), unigram, objective.backoff, is_start)

    def draw_pairs(rng, state, dense, context, own, shape):
        ids = negatives.draw_bigrams(rng, noise, context, shape[1])
        return ids, lambda words: negatives.bigram_log_q(noise, context, words)

    return Noise(True, {}, {}, draw_pairs, _nothing)


def _proposal(objective, num):
    dense = {
        "input": 0.1 * jax.random.normal(jax.random.key(1), (num, objective.rank)),
        "output": jnp.zeros((num, objective.rank)),
        "bias": jnp.zeros(num),
    }

    def logits(dense, context):
        rows = jnp.where((context >= 0)[:, None], dense["input"][jnp.maximum(context, 0)], 0.0)
        return rows @ dense["output"].T + dense["bias"]

    def draw_proposed(rng, state, dense, context, own, shape):
        drawn = negatives.propose(
            rng, jax.lax.stop_gradient(logits(dense, context)), shape[1], "stopped"
        )
        return drawn.ids, drawn.log_q_of

    def learn(state, dense, context, labels):
        """Likelihood of the data: what the noise should come near (Bengio & Senecal 2008)."""
        log_q = jax.nn.log_softmax(logits(dense, context))
        there = labels >= 0
        own = jnp.take_along_axis(log_q, jnp.maximum(labels, 0), -1)
        return state, -jnp.where(there, own, 0.0).sum()

    return Noise(True, {}, dense, draw_proposed, learn)
