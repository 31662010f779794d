"""The network of an audio run, trained whole on labels of frames (the paper's Table 1)."""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

from cpc.data import SAMPLE_RATE_HZ, Recordings, make_batches, read_all, select
from cpc.evaluate import embed_utterances
from cpc.models import Model
from cpc.train import ProgressWriter, make_optimizer, scale_by_layer
from cpc.types import UserError
from experiments.audio.data import labels_at
from experiments.command.config import Config
from experiments.supervised import MOST_RUNS, Features, hold_out, train_on_labels


def contexts_of(model: Model) -> Features:
    """Return the contexts of a batch, as a network that is trained whole has them."""

    def contexts(params, extra, batch, rng, train):
        variables = {"params": params, **extra}
        if not train:
            return model.embed(variables, batch["x"])[1], extra
        number = [batch["num_samples"]] if "num_samples" in batch else []
        (_, c), extra = model.module.apply(
            variables,
            batch["x"],
            True,
            *number,
            method="embed",
            mutable=list(extra),
            rngs={"dropout": rng},
        )
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
    """The run's own network with a softmax on c, trained whole on labels (the paper's Table 1).

    From the variables `start`, or a new start if None, on windows of the run's length, with its
    optimizer and `probe.layer_decay`; until it stops improving on held-out utterances of
    `recordings`, for `MOST_RUNS` times its steps at most. The learning rate is constant after its
    warm-up, whatever `optim.schedule`, as the end is not known.

    `labels` has one each 10 ms of each recording; the folder is for checkpoints. Returns a function
    from recordings to the log-probabilities (frames, num_classes) of each, and its setting.
    """
    options, rng = config.data, jax.random.key(config.seed + 2)
    numbers = np.arange(len(recordings))
    # The longest is trained on: there is always something to draw.
    held = hold_out(np.delete(numbers, np.argmax(recordings.lengths)), config.seed)
    kept = np.setdiff1d(numbers, held).tolist()
    draw = make_batches(
        select(recordings, kept),
        window_samples=options.window_samples,
        batch_size=options.batch_size,
        seed=config.seed,
    )
    encoder = model.module.encoder
    length = encoder.num_latents(options.window_samples)

    def draw_labelled(step):
        batch = draw(step)
        starts = zip(batch["utterance"], batch["start"], strict=True)
        windows = [
            labels_at(labels[kept[i]], int(start), length, encoder.stride) for i, start in starts
        ]
        real = {name: batch[name] for name in ("num_samples",) if name in batch}
        return {"x": batch["x"], "label": np.stack(windows), **real}

    def answer_with(answer, part):
        waveforms = [read_all(part, i) for i in range(len(part))]
        return embed_utterances(answer, waveforms, encoder.stride, ahead=encoder.frames_around[1])

    stop_by = select(recordings, held.tolist())
    lengths = [max(1, int(samples) // encoder.stride) for samples in stop_by.lengths]
    expected = np.concatenate(
        [
            labels_at(labels[i], 0, number, encoder.stride)
            for i, number in zip(held, lengths, strict=True)
        ]
    )

    if not (expected >= 0).any():
        raise UserError(
            f"of {len(recordings)} labelled utterances, the {len(held)} held out to stop by have "
            "no labels at all: give more, or leave the supervised network out of probe.features"
        )

    def accuracy(answer):
        given = np.concatenate(answer_with(answer, stop_by)).argmax(1)
        return (given == expected)[expected >= 0].mean()

    own = ("name", "learning_rate", "warmup_steps", "clip_norm", "weight_decay")
    of_run = {name: config.optim[name] for name in own}
    if of_run["name"] == "schedule_free":  # it would have to be evaluated by its average
        of_run["name"] = "adam"
    num_steps = MOST_RUNS * config.num_steps
    tx, _ = make_optimizer(num_steps=num_steps, **of_run)
    decay = 1.0 if start is None else config.probe.layer_decay
    tx = optax.chain(tx, scale_by_layer(decay, ("context", "encoder")))
    hours = options.batch_size * options.window_samples / SAMPLE_RATE_HZ / 3600
    console = ProgressWriter(num_steps, rate=(hours, "h audio"))
    answer, words = train_on_labels(
        contexts_of(model),
        start or model.init(rng, {"x": np.zeros((1, options.window_samples), np.float32)}),
        draw_labelled,
        tx,
        num_classes=num_classes,
        num_steps=num_steps,
        rng=rng,
        accuracy=accuracy,
        log_every=config.log_every,
        writers=(console,),
        num_threads=options.num_threads,
        folder=folder,
        save_every=config.save_every,
        settings={"config": json.loads(config.to_json()), "recordings": list(recordings.names)},
    )
    console.close()
    print(f"{words}, by {len(held)} held-out utterances of {len(recordings)}")
    return functools.partial(answer_with, answer), f"l2 {config.optim.weight_decay:g}, {words}"
