"""Evaluation of word models by perplexity and word similarity, and their report page."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from cpc.data.sources.similarity import read_judgements
from cpc.evaluate.words import analogy_score, nearest, perplexity_scores, similarity_scores
from cpc.files import read_object, write_arrays, write_json, write_text
from cpc.models.words import context_mask
from cpc.report.draw import BLUE, INK, label, make_figure
from cpc.report.engine import Section, Table, figure_of, write_page
from cpc.report.provenance import made_section
from cpc.report.scores import headlines, score_table, scores_section
from cpc.report.words import Words
from cpc.results import Score, read_run
from cpc.types import UserError
from experiments.kinds.words.step import gather_rows, log_p_scores

#: Words whose neighbours the page shows, if the text contains these words.
SHOWN = ("water", "king", "mother", "run", "red", "happy", "city", "horse", "doctor", "music",
         "war", "house", "small", "three", "monday", "gold")  # fmt: skip


def evaluate(trained: Any, log: Callable[[str], object]) -> tuple[list[Score], list[int]]:
    """Return a run's scores, and the indices of the words that the report page shows."""
    config, text, state = trained.config, trained.text, trained.state
    step, scores = int(state.step), []
    if config.evaluate.perplexity and len(text.test.tokens):
        log_probs = predict_log_probs(trained, text.test.tokens, text.test.sentence_starts)
        try:
            scores += perplexity_scores(*log_probs, features=config.model.name, data=text.name)
        except UserError as error:
            log(f"perplexity is not reported: {error}")
    vectors = np.asarray(state.params["tables"]["input"])
    index = {word: i for i, word in enumerate(text.train.vocabulary.words)}
    if config.evaluate.similarity:
        try:
            judged = read_judgements(log=log)
            scores += similarity_scores(vectors, index, judged.pairs, features=config.model.name)
            score = analogy_score(vectors, index, judged.analogies, features=config.model.name)
            scores += [score] if score else []
        except UserError as error:
            log(f"word similarity is not reported: {error}")
    shown = [index[word] for word in SHOWN if word in index] or list(range(1, min(9, len(index))))
    return [score._replace(seed=config.seed, step=step) for score in scores], shown


def predict_log_probs(
    trained: Any, tokens: Any, starts: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log p, its normalizer log Z and the sentence number of each word or skip-gram pair."""
    config, model, params = trained.config, trained.model, trained.state.params
    if not model.is_causal:  # `run.make` trains these models without the unknown word
        is_known = np.asarray(tokens) > 0
        tokens = np.asarray(tokens)[is_known]
        starts = np.unique(np.append(0, np.cumsum(is_known))[starts])
    most, size, reach = min(config.evaluate.max_places, len(tokens)), 128, model.reach
    num = max(1, -(-most // size))
    words, sentences = np.full((2, num * size + 2 * reach), -1, np.int32)
    words[reach : reach + most] = np.asarray(tokens[:most])
    sentences[reach : reach + most] = np.searchsorted(starts, np.arange(most), side="right")
    part = jax.jit(lambda *slices: tell_slice(trained, *slices))
    found = []
    for i in range(num):
        cut = slice(i * size, (i + 1) * size + 2 * reach)
        log_p, log_z, mask = map(np.asarray, part(params, words[cut], sentences[cut]))
        which = np.broadcast_to(sentences[cut][reach : reach + size, None], mask.shape)
        found.append((log_p[mask], log_z[mask], which[mask]))
    log_p, log_z, sentence = map(np.concatenate, zip(*found, strict=True))
    return log_p, log_z, sentence


def tell_slice(trained: Any, params: Any, words: Any, sentence: Any) -> tuple[Any, Any, Any]:
    """Return log p, log Z and mask, each (t, p), of the predicted words in a slice of text."""
    model, tables, reach = trained.model, params["tables"], trained.model.reach
    t, sees = len(words) - 2 * reach, context_mask(words, sentence, reach)
    h = model.encode(tables["input"][jnp.maximum(words, 0)], sees, params["dense"]["model"])
    scores = h @ tables["output"].T + tables.get("bias", 0.0)
    _, context, _ = gather_rows(model, words, sees)
    if "log_z" in tables:
        # Context -1 selects the last entry, for positions without context.
        scores = scores - tables["log_z"][context][:, None]
    scores = log_p_scores(trained.config.objective, scores, log_noise(trained, params, context))
    if not model.is_causal:  # the unknown word is not a class
        scores = scores.at[:, 0].set(-jnp.inf)
    log_z = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    own = words[reach : reach + t]
    if model.predicts_neighbours:
        mask = sees.at[:, reach].set(False)
        labels = jnp.stack([words[i : i + t] for i in range(2 * reach + 1)], 1)
    else:
        mask, labels = (own >= 0)[:, None], own[:, None]
    log_p = jnp.take_along_axis(scores, jnp.maximum(labels, 0), 1) - log_z
    return log_p, jnp.broadcast_to(log_z, log_p.shape), mask


def log_noise(trained: Any, params: Any, context: Any) -> Any:
    """Return log noise probabilities (t, words), or (1, words) if they do not depend on context."""
    noise = trained.noise
    rows = context if noise.is_conditional else jnp.zeros(1, jnp.int32)
    state, dense = trained.state.extra["noise"], params["dense"]["noise"]
    log_q = noise.draw(jax.random.key(0), state, dense, rows, rows, (len(rows), 1))[1]
    num = len(params["tables"]["output"])
    return log_q(jnp.broadcast_to(jnp.arange(num), (len(rows), num)))


def write_vectors(folder: pathlib.Path, trained: Any, shown: list[int]) -> None:
    """Write word vectors, as an array and as text for `probe.word_vectors`, and the page's data."""
    vectors = np.asarray(trained.state.params["tables"]["input"])
    words = trained.text.train.vocabulary.words
    write_arrays(folder / "vectors.npz", vectors=vectors)
    lines = [f"{len(words)} {vectors.shape[1]}\n"]
    for word, row in zip(words, vectors.tolist(), strict=True):
        lines.append(f"{word} {' '.join(map('{:.6g}'.format, row))}\n")
    write_text(folder / "vectors.txt", "".join(lines))
    near = zip(shown, nearest(vectors, np.array(shown), 6), strict=True)
    found = {words[i]: [words[j] for j in row] for i, row in near}
    write_json(folder / "neighbours.json", found)
    xy = map_words(vectors[1:301])
    if xy is not None:
        write_json(folder / "map.json", {"words": words[1:301], "xy": xy.round(4)})


def map_words(vectors: np.ndarray) -> np.ndarray | None:
    """Return two principal coordinates (n, 2), or None if the vectors do not span a plane."""
    centred = vectors - vectors.mean(0)
    if min(vectors.shape) < 2 or not np.isfinite(centred).all() or not centred.any():
        return None
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[:2].T


def write_words_report(workdir: str | pathlib.Path) -> pathlib.Path:
    """Write report.html and figures/*.png for a word model's run."""
    workdir = pathlib.Path(workdir)
    run = read_run(workdir)
    objective, model = run.config.get("objective", {}), run.config.get("model", {})
    drawn = map_figure(workdir)
    figures = figure_of("loss", loss_figure(run.train), "Loss", LOSS)
    figures += figure_of("map", drawn, "The 300 most frequent words", MAP)
    is_flat = not drawn and (workdir / "vectors.npz").exists()
    found = headlines(run.scores, WORDS)
    tables = [score_table(found, WORDS)] if found else []
    if near := read_object(workdir / "neighbours.json", []):
        rows = [{"word": word, "nearest": ", ".join(words)} for word, words in near.items()]
        tables.append(Table("Nearest words by cosine", pd.DataFrame(rows)))
    lead = f"{model.get('name')} by {objective.get('name')}, noise {objective.get('noise')}"
    sections = [
        Section("", run.problems, tables=tables),
        Section("Figures", [NO_MAP] if is_flat else [], figures=figures),
        scores_section(run.scores, WORDS),
        made_section(run.environment, run.config),
    ]
    return write_page(workdir, "report", "Words", f"{lead}: {workdir.resolve()}", sections=sections)


WORDS = Words(examples="text", tested="words", unranked=("log Z",))
LOSS = "Loss per pair. Losses of different objectives are not comparable."
NO_MAP = "The map is missing because the vectors are equal, not finite or one-dimensional."
MAP = "The two axes of greatest variance of the input vectors."


def loss_figure(train):
    """Plot the loss over the number of words, or return None if no steps are recorded."""
    if train.empty:
        return None
    figure, (axes,) = make_figure(1, row_height=3.2)
    axes.plot(train.words / 1e6, train.loss, color=BLUE, linewidth=1.4)
    label(axes, "millions of words", "nats per pair", "")
    return figure


def map_figure(workdir):
    """Draw words at their recorded coordinates, or return None if none are recorded."""
    found = read_object(workdir / "map.json", [])
    if not found:
        return None
    figure, (axes,) = make_figure(1, row_height=6.5)
    for (x, y), word in list(zip(found["xy"], found["words"], strict=True))[::2]:
        axes.text(x, y, word, fontsize=7, color=INK, ha="center", va="center")
    xs, ys = zip(*found["xy"], strict=True)
    axes.set_xlim(min(xs), max(xs))
    axes.set_ylim(min(ys), max(ys))
    label(axes, "first axis", "second axis", "")
    return figure
