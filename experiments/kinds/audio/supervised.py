"""Supervised training of an audio run's network on frame labels (the paper's Table 1)."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cpc.data import SAMPLE_RATE_HZ, Recordings, make_batches, read_all, select
from cpc.evaluate import embed_utterances
from cpc.models import Model
from cpc.results import digest
from cpc.train import ProgressWriter
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset
from experiments.kinds.audio.data import frame_labels, labels_of_frames
from experiments.training.supervised import (
    Answer,
    Features,
    Recipe,
    hold_out,
    make_own_optimizer,
    train_on_labels,
)

#: Maximum number of supervised steps, as a multiple of `num_steps`.
MAX_RUNS = 40


def contexts_of(model: Model) -> Features:
    """Return a function that computes contexts, through which the whole network is trained."""

    def contexts(params, extra, batch, rng, train):
        variables = {"params": params, **extra}
        if not train:
            return model.embed(variables, batch["x"])[1], extra
        given = [batch["x"], True, *(batch[name] for name in ("num_samples",) if name in batch)]
        how = {"method": "embed", "mutable": list(extra), "rngs": {"dropout": rng}}
        (_, c), extra = model.module.apply(variables, *given, **how)
        return c, extra

    return contexts


def train_supervised(
    config: Config,
    folder: pathlib.Path,
    model: Model,
    recordings: Recordings,
    labels: Sequence[np.ndarray],
    num_classes: int,
    start: Any = None,
) -> tuple[Callable[[Recordings], list[np.ndarray]], str]:
    """Train the run's network with a softmax layer on c, given labels that are 10 ms apart.

    Training starts from the variables `start`, or from a new initialization if `start` is None.
    Checkpoints are written to `folder`. Returns a function from recordings to log-probabilities
    (frames, num_classes), and a text about the training.
    """
    options, rng, encoder = config.data, jax.random.key(config.seed + 2), model.module.encoder
    # The longest recording is never held out, so that windows can always be drawn.
    longest = int(np.argmax(recordings.lengths))
    kept, held = hold_out(len(recordings), config.seed, [longest])
    num_steps = MAX_RUNS * config.num_steps
    layer_decay = 1.0 if start is None else config.probe.layer_decay
    hours = options.batch_size * options.window_samples / SAMPLE_RATE_HZ / 3600
    console = ProgressWriter(num_steps, rate=(hours, "h audio"))
    recipe = Recipe(
        make_own_optimizer(config, num_steps, layer_decay, ("context", "encoder")),
        num_steps,
        evaluate_every=min(1000, max(10, config.num_steps // 4)),
        accuracy=accuracy_on(encoder, select(recordings, held), [labels[i] for i in held]),
    )
    if start is None:
        window = np.zeros((1, options.window_samples), np.float32)
        start = model.init(rng, {"x": window})
    draw = draw_labelled(config, encoder, select(recordings, kept), [labels[i] for i in kept])
    named = digest(num_classes, np.concatenate(labels))
    saved = {"recordings": list(recordings.names), "labels": named}
    given = contexts_of(model), start, draw, recipe
    how = {"rng": rng, "writers": (console,), "folder": folder, "settings": saved}
    answer, words = train_on_labels(config, *given, num_classes=num_classes, **how)
    console.close()
    print(f"{words}, by {len(held)} held-out utterances of {len(recordings)}")
    setting = f"l2 {config.optim.weight_decay:g}, {words}"
    return functools.partial(answers_of, encoder, answer), setting


def draw_labelled(
    config: Config, encoder: Any, recordings: Recordings, labels: Sequence[np.ndarray]
) -> Callable[[int], Batch]:
    """Return draw(step), which returns a batch of windows with one label per latent."""
    options = config.data
    sizes = subset(options, "window_samples", "batch_size")
    draw = make_batches(recordings, **sizes, seed=config.seed)
    length = encoder.num_latents(options.window_samples)

    def draw_with_labels(step):
        batch = draw(step)
        starts = zip(batch["utterance"], batch["start"], strict=True)
        windows = [
            frame_labels(labels[i], int(start), length, encoder.stride) for i, start in starts
        ]
        real = {name: batch[name] for name in ("num_samples",) if name in batch}
        return {"x": batch["x"], "label": np.stack(windows), **real}

    return draw_with_labels


def answers_of(encoder: Any, answer: Answer, recordings: Recordings) -> list[np.ndarray]:
    """Return each recording's log-probabilities (frames, classes)."""
    waveforms = [read_all(recordings, i) for i in range(len(recordings))]
    return embed_utterances(answer, waveforms, encoder.stride, ahead=encoder.frames_around[1])


def accuracy_on(
    encoder: Any, recordings: Recordings, labels: Sequence[np.ndarray]
) -> Callable[[Answer], float]:
    """Return accuracy(answer), which scores predictions on labelled frames of `recordings`."""
    expected = np.concatenate(labels_of_frames(recordings, labels, encoder.stride))
    if not (expected >= 0).any():
        number = f"none of {len(recordings)} held-out utterances has labels for early stopping"
        raise UserError(f"{number}: label more, or remove supervised from probe.features")

    def accuracy(answer):
        given = np.concatenate(answers_of(encoder, answer, recordings)).argmax(1)
        return float((given == expected)[expected >= 0].mean())

    return accuracy
