"""A run of words: text to slices, steps by rows, scores, the page; resumes bit for bit."""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.words import KEYS
from cpc.data import keep_probabilities
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
from experiments.command.config import Config, check_config
from experiments.kinds.words import step as steps
from experiments.kinds.words.step import Noise, make_noise
from experiments.kinds.words.text import Text, load_text
from experiments.training.loop import Training, prefetched, run_training
from experiments.training.problem import Work

NAME, ON_ONE_DEVICE = "words", True


class Trained(NamedTuple):
    """What a run makes of a text."""

    config: Config
    text: Text
    model: WordModel
    noise: Noise
    stream: WordStream
    state: TrainState
    launch: Callable[[TrainState, Any], TrainState]


def interpret(kind: Any, config: Config, mesh: Any = None) -> Config:
    """Return a config of words, checked."""
    check_config(config, KEYS)
    make_model(config)
    steps.check(config)
    return config


def make_model(config: Config) -> WordModel:
    """Return the model of a config."""
    model = config.model
    return word_model(model.name, model.width, model.reach, model.hidden)


def make(config: Config, text: Text, mesh: jax.sharding.Mesh | None = None) -> Trained:
    """Return all that a run needs before its first step."""
    corpus, counts = text.train, text.train.vocabulary.counts
    if (counts > 0).sum() < 2:
        raise UserError(
            "the vocabulary has one word: lower data.min_count, or give a text of more words"
        )
    model, threshold = make_model(config), config.data.subsample
    keep = keep_probabilities(counts, threshold) if threshold else np.ones(len(counts))
    if not model.is_causal:  # to a language model the unknown word is one like others
        keep[0], counts = 0.0, np.where(np.arange(len(counts)) == 0, 0, counts)
    starts = corpus.sentence_starts
    stream = word_stream(
        corpus.tokens,
        starts,
        keep,
        seed=config.seed,
        steps=config.steps_per_launch,
        positions=config.data.positions,
        margin=model.reach,
    )
    is_start = np.zeros(len(corpus.tokens) + 1, bool)
    is_start[starts] = True
    # Words of the batch come as they are thinned out.
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


def train(run: Trained, folder: pathlib.Path, mesh: jax.sharding.Mesh) -> tuple[str, TrainState]:
    """Train to the end or to a signal; returns the signal's name, and the state."""
    config, stream = run.config, run.stream
    per_launch = config.steps_per_launch
    words_per_step = stream.words_per_launch / per_launch

    num_steps = config.epochs * stream.per_epoch * per_launch
    size = words_per_step / 1000, "k words"
    console = ProgressWriter(num_steps, describe_values("loss", "pairs"), size)

    def put(launch):
        return replicate(stream.launch(launch), mesh)

    training = Training(
        run.state,
        run.launch,
        prefetched(put, num_steps, per_launch, config.data.num_threads),
        num_steps=num_steps,
        per_step=size,
        summarize=functools.partial(summarize, words_per_step),
        cadence=Cadence(
            log_every=config.log_launches * per_launch,
            save_every=config.save_launches * per_launch,
            steps_per_launch=per_launch,
        ),
        steps_in_flight=2,
    )
    state, reason = run_training(folder, config, training, console)
    return reason, state


def summarize(words_per_step: float, sums: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return the record of the sums of a window of steps."""
    num, pairs = (float(sums[name]) or math.nan for name in ("steps", "pairs"))
    return {
        "loss": float(sums["loss_of_pairs"]) / pairs,
        "pairs": float(sums["pairs"]) / num,
        "gradient_norm": float(sums["gradient_norm"]) / num,
        "proposal_loss": float(sums["proposal_loss"]) / pairs,
        "words": step * words_per_step,
    }


def make_work(
    kind: Any, config: Config, text: Text, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> Work:
    """Return what trains and evaluates the words of a text."""
    trained = make(config, text, mesh)

    def finish(state: TrainState) -> None:
        from experiments.kinds.words.evaluate import evaluate, write_vectors

        done = trained._replace(state=state)
        scores, shown = evaluate(done, print)
        write_scores(folder, scores)
        write_vectors(folder, done, shown)
        print_scores(scores)

    def write_page(folder: pathlib.Path) -> pathlib.Path:
        from experiments.kinds.words.page import write_words_report  # matplotlib takes seconds

        return write_words_report(folder)

    return Work(lambda: train(trained, folder, mesh), finish, write_page)


def load_data(config: Config, log: Callable[[str], object]) -> Text:
    """Return the text that a config names."""
    return load_text(config.data, config.seed, log)
