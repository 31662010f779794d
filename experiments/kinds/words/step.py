"""Training steps of word models for all objectives: noise words, updated table rows and loss.

A position is a word of the text, with a vector h. Its positives are the word itself or, for
skip-gram, its neighbours. Scores are h . output + bias. Groups of `share` positions have common
noise words, and blocks have their positives in a common span, so all scores are matrix products.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cpc import negatives
from cpc.losses import logistic_pairs, softmax_pairs
from cpc.models.words import WordModel, band_mask, block_size, context_mask, overlapping_blocks
from cpc.negatives.noise import check_distinct
from experiments.command.config import Config
from experiments.training.checks import reject


class Noise(NamedTuple):
    """A noise distribution with its state and parameters."""

    is_conditional: bool
    """Whether the noise depends on the context, so that each position has separate draws."""
    init: dict[str, Any]
    """Initial state of the noise."""
    dense: dict[str, Any]
    """Initial parameters of the noise."""
    draw: Callable[..., tuple[Any, Callable[[Any], Any]]]
    """Function draw(rng, state, dense, context (t,), own (t,), (g, n)) that returns ids (g, n) and
    log_q. The argument of log_q has a row per position, or per group if q is fixed."""
    learn: Callable[..., tuple[dict[str, Any], Any]]
    """Function learn(state, dense, context, labels) that returns a new state and a loss."""


def fixed_q(objective: Config, counts: np.ndarray) -> np.ndarray:
    """Return the word probabilities q of a noise distribution that training does not change."""
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
    # Batch words have the frequencies of the text.
    return negatives.unigram(counts, 1.0 if name == "batch" else objective.alpha)


def make_noise(objective: Config, counts: np.ndarray, tokens: Any, is_start: Any) -> Noise:
    """Build an objective's noise distribution."""
    name, num = objective.noise, len(counts)
    if name == "learned_unigram":
        return _learned(num)
    if name == "bigram":
        return _bigram(objective, counts, tokens, is_start)
    if name == "proposal":
        return _proposal(objective, num)
    q = fixed_q(objective, counts)
    log_table = jnp.log(jnp.maximum(jnp.asarray(q, jnp.float32), 1e-30))
    if objective.unique:
        check_distinct(objective.draws or objective.k, int((q > 0).sum()))
    table = negatives.AliasTable(*map(jnp.asarray, negatives.alias_table(q)))

    def draw_table(rng, state, dense, context, own, shape):
        if name == "batch":
            return own.reshape(shape[0], -1), lambda words: log_table[words]
        if not objective.unique:
            return negatives.draw(rng, table, shape), lambda words: log_table[words]
        (g, n), rngs = shape, jax.random.split(rng, shape[0])
        ids, tries = jax.vmap(lambda key: negatives.draw_unique(key, table, n))(rngs)

        def log_expected(words):  # log (Q / n) for the expected count Q, as losses add log n
            rows = jnp.repeat(tries, len(words) // g)[:, None].astype(jnp.float32)
            chance = -jnp.expm1(rows * jnp.log1p(-jnp.exp(log_table[words])))
            return jnp.log(jnp.maximum(chance, 1e-30) / n)

        return ids, log_expected

    return Noise(False, {}, {}, draw_table, _nothing)


def _nothing(state, dense, context, labels):
    return state, 0.0


def _learned(num):
    def draw_counts(rng, state, dense, context, own, shape):
        totals = jnp.cumsum(state["counts"])
        drawn = jax.random.randint(rng, shape, 0, totals[-1])
        log_q = jnp.log(state["counts"] / totals[-1])
        return jnp.searchsorted(totals, drawn, side="right"), lambda words: log_q[words]

    def learn(state, dense, context, labels):
        counts = negatives.observe(state["counts"], labels)
        # Draws need a sum below 2^31, and a step adds up to 2^27, so counts are halved in time.
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
        """Return the negative log-likelihood of the data (Bengio & Senecal 2008)."""
        log_q = jax.nn.log_softmax(logits(dense, context))
        own = jnp.take_along_axis(log_q, jnp.maximum(labels, 0), -1)
        return state, -jnp.where(labels >= 0, own, 0.0).sum()

    return Noise(True, {}, dense, draw_proposed, learn)


LOGISTIC = ("nce", "negative_sampling", "sampled_logistic")


class Places(NamedTuple):
    """A training step's positions and their noise words."""

    sees: Any
    """Mask (t, 2 r + 1) of the words within reach r that each position sees."""
    context: Any
    """Nearest context word (t,) or -1, on which conditional noise and log Z depend."""
    labels: Any
    """Ids (t, p) of the positives, padded with -1."""
    drawn: Any
    """Ids (g, n) of the noise words, padded with -1, or None for full softmax."""
    log_q_labels: Any
    """Log noise probability log q (t, p) of the positives."""
    log_q_drawn: Any
    """Log q (t, n) of the noise words, or (g, n) if groups share noise words and q is fixed."""
    noise: Any
    """State of the noise distribution."""


def check(config: Config) -> None:
    """Check that an objective's keys are consistent."""
    objective, positions = config.objective, config.data.positions
    share, is_batch = objective.share or positions, objective.noise == "batch"
    is_unshared = objective.noise in ("bigram", "proposal") and share != 1
    is_drawn = objective.noise in ("learned_unigram", "bigram", "proposal", "batch")
    reject(config,
        (positions % share, "objective.share data.positions",
         "objective.share must divide data.positions; change one of them"),
        (is_unshared, "objective.noise objective.share",
         "this noise depends on the context and cannot be shared; set objective.share to 1"),
        (is_batch and (share < 2 or objective.name in LOGISTIC),
         "objective.noise objective.name objective.share",
         "noise from the batch needs a softmax objective; set objective.share above 1"),
        (objective.log_z == "learned" and objective.name != "nce", "objective.log_z objective.name",
         "only nce learns log Z; set objective.name=nce or objective.log_z=zero"),
        (objective.unique and is_drawn, "objective.unique objective.noise",
         "this noise repeats words; use unigram, uniform, log_uniform or minority noise"),
    )  # fmt: skip


def init(config: Config, model: WordModel, noise: Noise, log_unigram: Any, rng: Any) -> Any:
    """Return the initial parameters and the noise distribution's initial state."""
    params = model.init(rng, len(log_unigram))
    tables = params["tables"]
    if config.model.bias == "none":
        del tables["bias"]
    elif config.model.bias == "unigram":  # Mnih & Teh 2012, section 5.1
        tables["bias"] = jnp.asarray(log_unigram, jnp.float32)
    if config.objective.log_z == "learned":
        tables["log_z"] = jnp.zeros(len(log_unigram) + 1)  # last entry: no context
    dense = {"model": params["dense"], "noise": noise.dense}
    return {"tables": tables, "dense": dense}, {"noise": noise.init}


def make(config: Config, model: WordModel, noise: Noise) -> tuple[Callable, Callable]:
    """Return `choose`, which selects table rows, and `loss_fn` for `make_row_step`."""
    objective, t = config.objective, config.data.positions
    share = objective.share or t
    num_drawn = objective.draws or objective.k
    is_full = objective.name == "full_softmax"

    def choose(params, extra, batch, rng):
        words = batch["tokens"]
        reach_rng, noise_rng = jax.random.split(rng)
        reach = None
        if config.model.reduce and not model.is_causal:
            reach = jax.random.randint(reach_rng, (t,), 1, model.reach + 1)
        sees = context_mask(words, batch["sentence"], model.reach, reach)
        own, context, labels = gather_rows(model, words, sees)
        ids: dict[str, Any] = {"input": jnp.maximum(words, 0)}
        if "log_z" in params["tables"]:
            last = len(params["tables"]["log_z"]) - 1
            ids["log_z"] = jnp.where(context >= 0, context, last)
        if is_full:
            places = Places(sees, context, labels, None, 0.0, 0.0, extra["noise"])
            return places, {**ids, **dict.fromkeys(("output", "bias"))}
        dense = params["dense"]["noise"]
        drawn, log_q = noise.draw(
            noise_rng, extra["noise"], dense, context, own, (t // share, num_drawn)
        )
        known, log_q_labels = jnp.maximum(drawn, 0), log_q(jnp.maximum(labels, 0))
        read = jnp.concatenate([jnp.maximum(words, 0), known.ravel()])
        places = Places(sees, context, labels, drawn, log_q_labels, log_q(known), extra["noise"])
        return places, {**ids, "output": read, "bias": read}

    def loss_fn(parts, extra, batch, places):
        rows, dense = parts["tables"], parts["dense"]
        h = model.encode(rows["input"], places.sees, dense["model"])
        mask = places.labels >= 0
        if is_full:
            loss, state, extra_loss = full_loss(h, rows, places.labels, mask), extra["noise"], 0.0
        else:
            positive, negatives = score(model, h, rows, places.drawn)
            log_q = places.log_q_labels, places.log_q_drawn
            if not noise.is_conditional:  # q is shared by the positions of a group
                log_q = log_q[0], jnp.repeat(log_q[1], t // len(places.drawn), 0)
            positive, negatives = correct(objective, positive, negatives, log_q, rows.get("log_z"))
            where = negatives_that_count(objective, model, places)
            if objective.name in LOGISTIC:
                weight = objective.negative_weight * objective.k / places.drawn.shape[1]
                each = logistic_pairs(positive, negatives, mask, where, weight=weight)
            else:
                each = softmax_pairs(positive, negatives, mask, where)
            loss = each.sum()
            state, extra_loss = noise.learn(
                places.noise, dense["noise"], places.context, places.labels
            )
        metrics = {"pairs": jnp.maximum(mask.sum(), 1).astype(jnp.float32), "loss_of_pairs": loss,
                   "proposal_loss": jnp.asarray(extra_loss, jnp.float32)}  # fmt: skip
        return loss + extra_loss, ({"noise": state}, metrics)

    return choose, loss_fn


def gather_rows(model: WordModel, words: Any, sees: Any) -> tuple[Any, Any, Any]:
    """Return each position's word (t,), nearest context word (t,) and positives (t, p)."""
    reach, t = model.reach, len(sees)
    own = words[reach : reach + t]
    if model.predicts_neighbours:
        block = block_size(t, reach)
        mask = band_mask(sees.at[:, reach].set(False), block)
        labels = jnp.where(mask, overlapping_blocks(words, block, reach)[:, None], -1).reshape(
            t, -1
        )
        return own, own, labels
    context = jnp.where(sees[:, reach - 1], words[reach - 1 : reach - 1 + t], -1)
    # Without context, only a language model has a label: the first word of a sentence.
    has = own >= 0 if model.is_causal else sees.at[:, reach].set(False).any(1)
    return own, context, jnp.where(has, own, -1)[:, None]


def full_loss(h: Any, rows: Any, labels: Any, mask: Any) -> Any:
    """Return -log softmax(h . output + bias), summed over labels where `mask` is true."""
    log_p = jax.nn.log_softmax(h @ rows["output"].T + rows.get("bias", 0.0))
    own = jnp.take_along_axis(log_p, jnp.maximum(labels, 0), 1)
    return -jnp.where(mask, own, 0.0).sum()


def score(model: WordModel, h: Any, rows: Any, drawn: Any) -> tuple[Any, Any]:
    """Return the scores of the positives (t, p) and of the noise words (t, n)."""
    (groups, n), reach, t = drawn.shape, model.reach, len(h)
    size = t + 2 * reach
    output, noisy = rows["output"][:size], rows["output"][size:]
    bias = rows.get("bias", jnp.zeros(size + groups * n))
    if model.predicts_neighbours:
        block = block_size(t, reach)
        blocks = h.reshape(t // block, block, -1)
        positive = jnp.einsum("gcd,ged->gce", blocks, overlapping_blocks(output, block, reach))
        positive += overlapping_blocks(bias[:size], block, reach)[:, None]
        positive = positive.reshape(t, -1)
    else:
        positive = (h * output[reach : reach + t]).sum(-1, keepdims=True)
        positive += bias[reach : reach + t, None]
    of_groups = h.reshape(groups, -1, h.shape[-1])
    negatives = jnp.einsum("gsd,gnd->gsn", of_groups, noisy.reshape(groups, n, -1))
    negatives += bias[size:].reshape(groups, 1, n)
    return positive, negatives.reshape(t, n)


def correct(
    objective: Any, positive: Any, negatives: Any, log_q: tuple[Any, Any], log_z: Any
) -> tuple[Any, Any]:
    """Subtract noise log-probabilities and, for some objectives, log k and log Z from scores."""
    name = objective.name
    corrects = name in ("nce", "ranking_nce") or (
        objective.subtract_log_q and name != "negative_sampling"
    )
    if not corrects:
        return positive, negatives
    constant = jnp.log(jnp.float32(objective.k)) if name in ("nce", "sampled_logistic") else 0.0
    if log_z is not None:
        constant += log_z[:, None]
    return positive - log_q[0] - constant, negatives - log_q[1] - constant


def negatives_that_count(objective: Any, model: WordModel, places: Places) -> Any:
    """Return a mask (t, p, n) of valid negatives for each positive, or None if all are valid."""
    if not (objective.remove_hits or objective.noise == "batch"):
        return None
    t, groups = len(places.labels), len(places.drawn)
    shared = jnp.repeat(places.drawn, t // groups, 0)[:, None]
    if objective.remove_hits:
        where = shared != places.labels[..., None]
    else:  # an occurrence is not its own negative, but other occurrences of the word are
        at = jnp.arange(t).reshape(groups, -1).repeat(t // groups, 0)[:, None]
        places_of = jnp.arange(t)[:, None]  # (t, p) positions of the labels
        if model.predicts_neighbours:
            reach, block = model.reach, block_size(t, model.reach)
            near = overlapping_blocks(jnp.arange(-reach, t + reach), block, reach)[:, None]
            of_block = (t // block, block, block + 2 * reach)
            places_of = jnp.broadcast_to(near, of_block).reshape(t, -1)
        where = at != places_of[..., None]
    return where & (shared >= 0) if objective.noise == "batch" else where


def log_p_scores(objective: Config, scores: Any, log_q: Any) -> Any:
    """Convert an objective's scores to log p, up to a constant that depends on the context.

    Scores are log p / q for negative sampling and for objectives that do not subtract log q. They
    are log odds for logistic objectives that remove noise words equal to the positive.
    """
    is_logistic = objective.name in LOGISTIC
    learns_ratio = objective.name == "negative_sampling" or (
        objective.name in ("sampled_softmax", "sampled_logistic", "info_nce")
        and not objective.subtract_log_q
    )
    if learns_ratio:
        scores = scores + log_q
    if is_logistic and objective.remove_hits:
        constant = jnp.log(jnp.float32(objective.k)) if learns_ratio else 0.0
        return jax.nn.log_sigmoid(scores + constant)
    return scores
