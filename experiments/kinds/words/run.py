"""Training of a word model, with its text, row updates, scores and report page."""

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.words import KEYS
from cpc import report
from cpc.data import (
    Corpus,
    Vocabulary,
    describe_corpus,
    keep_probabilities,
    prefetch,
    read_text_folder,
    split_for_training,
)
from cpc.data.cache import cache_dir
from cpc.data.sources.texts import prepare_texts
from cpc.data.walk import count_names
from cpc.data.words import WordStream, word_stream
from cpc.models.words import WordModel, word_model
from cpc.results import print_scores, write_scores
from cpc.train import (
    Cadence,
    ProgressWriter,
    TrainState,
    describe_values,
    init_row_state,
    jit_step,
    make_row_step,
    replicate,
    scan_steps,
)
from cpc.types import UserError
from experiments.command.config import Config, check_config, subset
from experiments.kinds.text.data import TextData as Text
from experiments.kinds.words import step as steps
from experiments.kinds.words.step import Noise, make_noise
from experiments.training.checks import data_root, name_of
from experiments.training.loop import Training, run_training
from experiments.training.problem import Work


def synthetic(seed: int, num_tokens: int = 100_000, num_words: int = 1000) -> Corpus:
    """Generate a Zipfian bigram language with eight frequent successors per word."""
    rng = np.random.default_rng(seed)
    zipf = 1 / np.arange(1, num_words)
    zipf /= zipf.sum()
    favourites = rng.choice(num_words - 1, (num_words - 1, 8), p=zipf)
    follows, often = rng.random(num_tokens) < 0.7, rng.integers(0, 8, num_tokens)
    other = rng.choice(num_words - 1, num_tokens, p=zipf)
    tokens = np.empty(num_tokens, np.int32)
    last = 0
    for i in range(num_tokens):
        last = favourites[last, often[i]] if follows[i] else other[i]
        tokens[i] = last
    order = np.argsort(-np.bincount(tokens, minlength=num_words - 1), kind="stable")
    tokens = (np.argsort(order)[tokens] + 1).astype(np.int32)
    words = ("<unk>", *(f"w{i}" for i in range(1, num_words)))
    starts = np.append(np.arange(0, num_tokens, 20), num_tokens).astype(np.int64)
    counts = np.bincount(tokens, minlength=num_words).astype(np.int64)
    documents = np.array([0, len(starts) - 1], np.int64)
    return Corpus(tokens, starts, documents, Vocabulary(words, counts), [])


def load_data(config: Config, log: Callable[[str], object]) -> Text:
    """Read or generate the text of `config.data`, and split the text."""
    data, is_own = config.data, config.data.source == "folder"
    if data.source == "synthetic":
        corpus = synthetic(config.seed)
    else:
        folder = data_root(config) if is_own else prepare_texts(data.source, log=log) / "text"
        limits = subset(data, "min_count", "max_vocabulary")
        form = data.form if is_own else "prose"
        corpus = read_text_folder(folder, cache_dir() / "packs", log, form=form, **limits)
    skipped = count_names(corpus.skipped, "files skipped")
    if data.test_fraction == 0:
        log(f"data: {describe_corpus(corpus)}; {skipped}")
        return Text(corpus, corpus._replace(tokens=corpus.tokens[:0]), name=name_of(config))
    train, test, num_copies = split_for_training(corpus, test=data.test_fraction, seed=config.seed)
    copies = f"{num_copies:,} training sentences are skipped, as the test text contains them; "
    used = describe_corpus(corpus._replace(vocabulary=train.vocabulary))
    log(f"data: {used}; {copies if num_copies else ''}{skipped}")
    return Text(train, test, name=name_of(config))


ON_ONE_DEVICE = True


class Trained(NamedTuple):
    """A run's model, data and state."""

    config: Config
    text: Text
    model: WordModel
    noise: Noise
    stream: WordStream
    state: TrainState
    launch: Callable[[TrainState, Any], TrainState]


def interpret(kind: Any, config: Config, mesh: Any = None, workdir: Any = None) -> Config:
    """Validate a config and return it unchanged."""
    check_config(config, KEYS)
    make_model(config)
    steps.check(config)
    return config


def make_model(config: Config) -> WordModel:
    """Build the word model of a config."""
    model = config.model
    return word_model(model.name, model.width, model.reach, model.hidden)


def make(config: Config, text: Text, mesh: jax.sharding.Mesh | None = None) -> Trained:
    """Build a run's model, noise, word stream, initial state and launch function."""
    corpus, counts = text.train, text.train.vocabulary.counts
    if (counts > 0).sum() < 2:
        raise UserError(
            "the vocabulary has fewer than two words: lower data.min_count, or use a longer text"
        )
    model, threshold = make_model(config), config.data.subsample
    keep = keep_probabilities(counts, threshold) if threshold else np.ones(len(counts))
    if not model.is_causal:  # only language models predict the unknown word
        keep[0], counts = 0.0, np.where(np.arange(len(counts)) == 0, 0, counts)
    starts = corpus.sentence_starts
    sizes = {"steps": config.steps_per_launch, "positions": config.data.positions}
    stream = word_stream(corpus.tokens, starts, keep, seed=config.seed, **sizes, margin=model.reach)
    is_start = np.zeros(len(corpus.tokens) + 1, bool)
    is_start[starts] = True
    # Noise from the batch has the frequencies after subsampling.
    frequency = counts * keep if config.objective.noise == "batch" else counts
    noise = make_noise(config.objective, frequency, corpus.tokens, is_start[:-1])
    root = jax.random.key(config.seed)
    log_unigram = np.log(np.maximum(counts, 0.5) / counts.sum())
    params, extra = steps.init(config, model, noise, log_unigram, jax.random.fold_in(root, 0))
    num_steps = config.epochs * stream.per_epoch * config.steps_per_launch

    def learning_rate(step):
        return config.optim.learning_rate * jnp.maximum(1 - step / num_steps, 1e-4)

    choose, loss_fn = steps.make(config, model, noise)
    zeros: Any = dict.fromkeys(("pairs", "loss_of_pairs", "proposal_loss"), jnp.zeros(()))
    rule, rng = config.optim.rule, jax.random.fold_in(root, 1)
    state = init_row_state(params, extra, rule, rng, zeros)
    step = make_row_step(choose, loss_fn, learning_rate, rule)
    if mesh is not None:
        state = replicate(state, mesh)
    launch = jit_step(functools.partial(scan_steps, step), state)
    return Trained(config, text, model, noise, stream, state, launch)


def train(run: Trained, folder: Path, mesh: jax.sharding.Mesh) -> tuple[str, TrainState]:
    """Train until the last step or a signal, and return the reason for stopping and the state."""
    config, stream, per_launch = run.config, run.stream, run.config.steps_per_launch
    words_per_step = stream.words_per_launch / per_launch
    num_steps = config.epochs * stream.per_epoch * per_launch
    size = words_per_step / 1000, "k words"
    console = ProgressWriter(num_steps, describe_values("loss", "pairs"), size)

    def put(launch):
        return replicate(stream.launch(launch), mesh)

    end, num_threads = num_steps // per_launch, config.data.num_threads
    log_every, save_every = config.log_launches * per_launch, config.save_launches * per_launch
    training = Training(
        run.state,
        run.launch,
        lambda first: prefetch(put, first // per_launch, end, num_threads=num_threads),
        num_steps=num_steps,
        per_step=size,
        summarize=functools.partial(summarize, words_per_step),
        cadence=Cadence(log_every, save_every=save_every, steps_per_launch=per_launch),
        steps_in_flight=2,
    )
    state, reason = run_training(folder, config, training, console)
    return reason, state


def summarize(words_per_step: float, sums: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Convert metric sums over some steps into a log record."""
    num, pairs = (float(sums[name]) or math.nan for name in ("steps", "pairs"))
    return {
        "loss": float(sums["loss_of_pairs"]) / pairs,
        "pairs": float(sums["pairs"]) / num,
        "gradient_norm": float(sums["gradient_norm"]) / num,
        "proposal_loss": float(sums["proposal_loss"]) / pairs,
        "words": step * words_per_step,
    }


def make_work(kind: Any, config: Config, text: Text, folder: Path, mesh: jax.sharding.Mesh) -> Work:
    """Return functions that train and evaluate a word model and write its report page."""
    trained = make(config, text, mesh)

    def finish(state: TrainState) -> None:
        from experiments.kinds.words.evaluate import evaluate, write_vectors  # slow: matplotlib

        done = trained._replace(state=state)
        scores, shown = evaluate(done, print)
        write_scores(folder, scores)
        write_vectors(folder, done, shown)
        print_scores(scores)

    def write_page(folder: Path) -> Path:
        from experiments.kinds.words.evaluate import write_words_report

        return write_words_report(folder)

    def closing_lines(folder: Path) -> list[str]:
        from experiments.kinds.words.evaluate import WORDS

        return report.closing_lines(folder, WORDS)

    return Work(lambda: train(trained, folder, mesh), finish, write_page, closing_lines)
