"""The step of every objective on every model of words: what is drawn, which rows, which loss.

A place has a vector h and positives: its own word, or of skip-gram its neighbours. Scores are
h . output + bias; noise words are drawn for groups of `share` places, so that their scores are a
matrix product. Positives lie in the span of a block of places, so that theirs are one too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc.losses import logistic_pairs, softmax_pairs
from cpc.models.words import WordModel, band, block_size, look, spans
from experiments.command.config import Config
from experiments.kinds.words.noise import Noise
from experiments.training.checks import reject

LOGISTIC = ("nce", "negative_sampling", "sampled_logistic")


class Places(NamedTuple):
    """The places of a step, and what was drawn for them."""

    sees: Any
    """(t, 2 r + 1) which words each place sees."""
    context: Any
    """(t,) the nearest word of the context, that conditional noise and log Z follow; -1: none."""
    labels: Any
    """(t, p) ids of the positives; -1 where there is none."""
    drawn: Any
    """(g, n) ids of the noise words, -1 where there is none; None of full softmax."""
    log_q_labels: Any
    """(t, p) log q of the positives."""
    log_q_drawn: Any
    """(t, n) log q of the noise words, or (g, n) where groups share them and q is fixed."""
    noise: Any
    """What the noise carries on."""


def check(config: Config) -> None:
    """Check that the keys of an objective go together."""
    objective, positions = config.objective, config.data.positions
    share, is_batch = objective.share or positions, objective.noise == "batch"
    is_unshared = objective.noise in ("bigram", "proposal") and share != 1
    is_drawn = objective.noise in ("learned_unigram", "bigram", "proposal", "batch")
    reject(config,
        (positions % share, "objective.share data.positions",
         "the first must divide the second"),
        (is_unshared, "objective.noise objective.share",
         "this noise follows the context, so each place has its own draws; set objective.share "
         "to 1"),
        (is_batch and (share < 2 or objective.name in LOGISTIC),
         "objective.noise objective.name objective.share",
         "the words of the batch as noise need a softmax objective and objective.share above 1"),
        (objective.log_z == "learned" and objective.name != "nce", "objective.log_z objective.name",
         "the objective has no log Z; choose nce, or log_z zero"),
        (objective.unique and is_drawn, "objective.unique objective.noise",
         "this noise cannot draw each word once; choose unigram, uniform, log_uniform or "
         "minority, or set objective.unique to False"),
    )  # fmt: skip


def init(config: Config, model: WordModel, noise: Noise, log_unigram: Any, rng: Any) -> Any:
    """Return the parameters and what the noise carries, before the first step."""
    params = model.init(rng, len(log_unigram))
    tables = params["tables"]
    if config.model.bias == "none":
        del tables["bias"]
    elif config.model.bias == "unigram":  # Mnih & Teh 2012, section 5.1
        tables["bias"] = jnp.asarray(log_unigram, jnp.float32)
    if config.objective.log_z == "learned":
        tables["log_z"] = jnp.zeros(len(log_unigram) + 1)  # the last one: no word is near
    dense = {"model": params["dense"], "noise": noise.dense}
    return {"tables": tables, "dense": dense}, {"noise": noise.init}


def make(config: Config, model: WordModel, noise: Noise) -> tuple[Callable, Callable]:
    """Return `choose` and `loss_fn` of `make_row_step`."""
    objective, t = config.objective, config.data.positions
    share = objective.share or t
    num_drawn = objective.draws or objective.k
    is_full = objective.name == "full_softmax"

    def choose(params, extra, batch, rng):
        words = batch["tokens"]
        far, of_noise = jax.random.split(rng)
        near = None
        if config.model.reduce and not model.is_causal:
            near = jax.random.randint(far, (t,), 1, model.reach + 1)
        sees = look(words, batch["sentence"], model.reach, near)
        own, context, labels = look_up(model, words, sees)
        ids: dict[str, Any] = {"input": jnp.maximum(words, 0)}
        if "log_z" in params["tables"]:
            last = len(params["tables"]["log_z"]) - 1
            ids["log_z"] = jnp.where(context >= 0, context, last)
        if is_full:
            places = Places(sees, context, labels, None, 0.0, 0.0, extra["noise"])
            return places, {**ids, **dict.fromkeys(("output", "bias"))}
        dense = params["dense"]["noise"]
        drawn, log_q = noise.draw(
            of_noise, extra["noise"], dense, context, own, (t // share, num_drawn)
        )
        known, log_q_labels = jnp.maximum(drawn, 0), log_q(jnp.maximum(labels, 0))
        read = jnp.concatenate([jnp.maximum(words, 0), known.ravel()])
        places = Places(sees, context, labels, drawn, log_q_labels, log_q(known), extra["noise"])
        return places, {**ids, "output": read, "bias": read}

    def loss_fn(parts, extra, batch, places):
        rows, dense = parts["tables"], parts["dense"]
        h = model.encode(rows["input"], places.sees, dense["model"])
        there = places.labels >= 0
        if is_full:
            loss, state, extra_loss = full_loss(h, rows, places.labels, there), extra["noise"], 0.0
        else:
            positive, negatives = score(model, h, rows, places.drawn)
            log_q = places.log_q_labels, places.log_q_drawn
            if not noise.is_conditional:  # the same for all places of a group
                log_q = log_q[0], jnp.repeat(log_q[1], t // len(places.drawn), 0)
            positive, negatives = correct(objective, positive, negatives, log_q, rows.get("log_z"))
            where = negatives_that_count(objective, model, places)
            if objective.name in LOGISTIC:
                weight = objective.negative_weight * objective.k / places.drawn.shape[1]
                each = logistic_pairs(positive, negatives, there, where, weight=weight)
            else:
                each = softmax_pairs(positive, negatives, there, where)
            loss = each.sum()
            state, extra_loss = noise.learn(
                places.noise, dense["noise"], places.context, places.labels
            )
        metrics = {"pairs": jnp.maximum(there.sum(), 1).astype(jnp.float32), "loss_of_pairs": loss,
                   "proposal_loss": jnp.asarray(extra_loss, jnp.float32)}  # fmt: skip
        return loss + extra_loss, ({"noise": state}, metrics)

    return choose, loss_fn


def look_up(model: WordModel, words: Any, sees: Any) -> tuple[Any, Any, Any]:
    """Return of each place the own word (t,), the nearest of its context (t,) and labels (t, p)."""
    reach, t = model.reach, len(sees)
    own = words[reach : reach + t]
    if model.predicts_neighbours:
        block = block_size(t, reach)
        there = band(sees.at[:, reach].set(False), block)
        labels = jnp.where(there, spans(words, block, reach)[:, None], -1).reshape(t, -1)
        return own, own, labels
    context = jnp.where(sees[:, reach - 1], words[reach - 1 : reach - 1 + t], -1)
    # A place without context tells a language model the first word, others nothing.
    has = own >= 0 if model.is_causal else sees.at[:, reach].set(False).any(1)
    return own, context, jnp.where(has, own, -1)[:, None]


def full_loss(h: Any, rows: Any, labels: Any, there: Any) -> Any:
    """Return the sum of -log softmax(h . output + bias) of the labels that are there."""
    log_p = jax.nn.log_softmax(h @ rows["output"].T + rows.get("bias", 0.0))
    own = jnp.take_along_axis(log_p, jnp.maximum(labels, 0), 1)
    return -jnp.where(there, own, 0.0).sum()


def score(model: WordModel, h: Any, rows: Any, drawn: Any) -> tuple[Any, Any]:
    """Return the scores of the positives (t, p) and of the noise words (t, n)."""
    (groups, n), reach, t = drawn.shape, model.reach, len(h)
    size = t + 2 * reach
    output, noisy = rows["output"][:size], rows["output"][size:]
    bias = rows.get("bias", jnp.zeros(size + groups * n))
    if model.predicts_neighbours:
        block = block_size(t, reach)
        blocks = h.reshape(t // block, block, -1)
        positive = jnp.einsum("gcd,ged->gce", blocks, spans(output, block, reach))
        positive += spans(bias[:size], block, reach)[:, None]
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
    """Return both scores less log q and, where the objective has them, log k and log Z."""
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
    """Return which noise words count beside which positive, (t, p, n); None for all."""
    if not (objective.remove_hits or objective.noise == "batch"):
        return None
    t, groups = len(places.labels), len(places.drawn)
    shared = jnp.repeat(places.drawn, t // groups, 0)[:, None]
    if objective.remove_hits:
        where = shared != places.labels[..., None]
    else:  # a word of the batch is not its own negative; others of its kind are
        at = jnp.arange(t).reshape(groups, -1).repeat(t // groups, 0)[:, None]
        places_of = jnp.arange(t)[:, None]  # which place each label is the word of, (t, p)
        if model.predicts_neighbours:
            reach, block = model.reach, block_size(t, model.reach)
            near = spans(jnp.arange(-reach, t + reach), block, reach)[:, None]
            of_block = (t // block, block, block + 2 * reach)
            places_of = jnp.broadcast_to(near, of_block).reshape(t, -1)
        where = at != places_of[..., None]
    return where & (shared >= 0) if objective.noise == "batch" else where


def log_p_scores(objective: Config, scores: Any, log_q: Any) -> Any:
    """Return log p up to a constant of the context, from what an objective makes scores of.

    Scores of negative sampling, and of others without their correction, are log p / q; of logistic
    objectives without accidental hits they are log odds.
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
