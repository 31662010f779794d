"""A head that learns phones in their order by CTC, on features or above a network.

That of CPC_audio and Libri-light: a convolution over 8 frames every 4 (25 times a second), by
itself or above an LSTM layer.
"""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cpc.evaluate import count_edits, ctc_nats, embed_utterances, greedy_decode
from cpc.evaluate.embeddings import continue_mirrored
from cpc.models import LSTM
from cpc.results import digest
from cpc.train import ProgressWriter, scale_by_layer
from cpc.types import Array, Batch
from experiments.command.config import Config
from experiments.training.supervised import Features, Recipe, hold_out, train_on_labels

#: Frames that the head sees, and from one of its answers to the next.
KERNEL, STRIDE = 8, 4
#: Utterances of a batch, and units of the LSTM.
BATCH, LSTM_WIDTH = 8, 256
LEARNING_RATE = 1e-3
#: A head that has learned nothing says the same phone always, and is right so often.
LUCK = 0.05


class Labelled(NamedTuple):
    """Inputs of utterances, (frames, features) or samples, and the phones of each in order."""

    inputs: Sequence[np.ndarray]
    phones: Sequence[list[int]]


class Network(NamedTuple):
    """What lies under the head."""

    features: Features
    variables: Any
    stride: int
    """Entries of an input from frame to frame."""
    layer_decay: float = 1.0
    """Of the learning rate, from a layer to the one below."""
    ahead: int = 0
    """Frames after its own that one sees."""


def frozen(inputs: Sequence[np.ndarray]) -> Network:
    """Return the network without parameters that standardises features by those of utterances."""
    rows = np.concatenate(inputs)
    mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    return Network(
        lambda params, extra, batch, rng, train: ((batch["x"] - mean) / scale, extra),
        {"params": {}},
        stride=1,
    )


def fit_head(
    config: Config, network: Network, train: Labelled, num_phones: int, folder: pathlib.Path
) -> tuple[Callable[[Sequence[np.ndarray]], list[np.ndarray]], str]:
    """Train a head, and the network if it has parameters, by CTC on utterances.

    Training stops when a held-out tenth improves no more, or after `probe.ctc_steps` batches.
    Returns a function from inputs to log-probabilities (t, num_phones + 1), the blank last, and in
    words how long it was trained.
    """
    rng = jax.random.key(config.seed + 3)
    held = hold_out(range(len(train.inputs)), config.seed).tolist()
    kept = np.setdiff1d(np.arange(len(train.inputs)), held).tolist()
    ahead = -(-((KERNEL - STRIDE) // 2 + network.ahead) // STRIDE)  # answers that one sees into
    draw = draw_utterances(pick(train, kept), network.stride, config.seed)
    features, variables = under_head(config, network, draw(0), rng)

    def answer_with(answer, inputs):
        return embed_utterances(answer, inputs, network.stride * STRIDE, ahead=ahead)

    wanted = pick(train, held)
    console = ProgressWriter(config.probe.ctc_steps)
    recipe = Recipe(
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adam(LEARNING_RATE),
            scale_by_layer(network.layer_decay, ("context", "encoder")),
        ),
        config.probe.ctc_steps,
        evaluate_every=max(10, config.probe.ctc_steps // 40),
        accuracy=lambda answer: quality(answer_with(answer, wanted.inputs), wanted.phones),
        loss=ctc_loss,
    )
    answer, words = train_on_labels(
        config,
        features,
        variables,
        draw,
        recipe,
        num_classes=num_phones + 1,
        rng=rng,
        writers=(console,),
        folder=folder,
        settings={
            "utterances": len(train.inputs),
            "labels": digest(num_phones, json.dumps([*train.phones])),
        },
    )
    console.close()
    return functools.partial(answer_with, answer), words


def ctc_loss(scores: Array, batch: Batch) -> Array:
    """Return the mean nats per utterance of the phones of a batch."""
    nats, count = ctc_nats(scores, batch["num_frames"], batch["phones"])
    return nats / jnp.maximum(count, 1)


def pick(utterances: Labelled, numbers: Sequence[int]) -> Labelled:
    """Return those with some numbers."""
    inputs, phones = utterances
    return Labelled([inputs[i] for i in numbers], [phones[i] for i in numbers])


def draw_utterances(train: Labelled, stride: int, seed: int) -> Callable[[int], Batch]:
    """Return draw(step) of whole utterances, `stride` entries a frame.

    They go on to the longest as they do where the head answers: the last answer sees 2 frames more.
    """
    longest = max(map(len, train.inputs))
    length = -(-longest // (stride * STRIDE)) * stride * STRIDE
    most = max(1, *map(len, train.phones))
    numbers = range(len(train.inputs))

    def draw(step: int) -> Batch:
        drawn = np.random.default_rng((seed, step)).choice(numbers, BATCH, len(numbers) < BATCH)
        inputs = [train.inputs[i] for i in drawn]
        sizes = np.array([len(x) for x in inputs], np.int32)
        return {
            "x": np.stack([continue_mirrored(x, length) for x in inputs]),
            "num_samples": sizes,
            "num_frames": sizes // (stride * STRIDE),
            "phones": fill_up([train.phones[i] for i in drawn], -1, most),
        }

    return draw


def under_head(
    config: Config, network: Network, batch: Batch, rng: Array
) -> tuple[Features, dict[str, Any]]:
    """Return what the head reads, and its variables: of the network, and of an LSTM if asked."""
    variables = dict(network.variables)
    params = {"network": variables.pop("params")}
    lstm = LSTM(LSTM_WIDTH) if config.probe.ctc_head == "lstm" else None
    if lstm is not None:
        frames, _ = jax.eval_shape(
            lambda batch: network.features(params["network"], variables, batch, rng, False), batch
        )
        params["lstm"] = lstm.init(rng, jnp.zeros((1, 1, frames.shape[-1])))["params"]

    def features(params, extra, batch, rng, is_training):
        frames, extra = network.features(params["network"], extra, batch, rng, is_training)
        if lstm is not None:
            frames: Any = lstm.apply({"params": params["lstm"]}, frames)
        return windows_of(frames), extra

    return features, {"params": params, **variables}


def quality(given: Sequence[np.ndarray], wanted: Sequence[Sequence[int]]) -> float:
    """What is right of the likeliest paths, and, where they tell nothing, of the likelihood."""
    edits = [count_edits(own, greedy_decode(one)) for own, one in zip(wanted, given, strict=True)]
    nats, count = jax.jit(ctc_nats)(
        fill_up(given, 0.0), np.array([len(one) for one in given]), fill_up(wanted, -1)
    )
    likelihood = float(jnp.exp(-nats / count)) if count else 0.0
    right = 1 - np.sum(edits) / max(1, sum(map(len, wanted)))
    # Answers are empty at first, and for long: without the likelihood that would be the end.
    return float((right if right > LUCK else 0.0) + 1e-3 * likelihood)


def fill_up(rows: Sequence[Any], value: float | int, length: int = 0) -> np.ndarray:
    """Return rows of unequal lengths as one array, the shorter ones filled up with a value.

    >>> fill_up([[1, 2], [3]], -1)
    array([[ 1,  2],
           [ 3, -1]], dtype=int32)
    """
    arrays = [np.asarray(row) for row in rows]
    length = max(length, *(len(row) for row in arrays))
    dtype = np.int32 if isinstance(value, int) else np.float32
    made = np.full((len(arrays), length, *arrays[0].shape[1:]), value, dtype)
    for row, array in zip(made, arrays, strict=True):
        row[: len(array)] = array
    return made


def windows_of(frames: Array) -> Array:
    """Return the frames that each answer of the head sees side by side, (b, t // 4, 8 d).

    A linear map of them is a convolution over 8 frames every 4, which sees 2 before its own four
    and 2 after; beyond an end are zeros.
    """
    t = frames.shape[1]
    before = (KERNEL - STRIDE) // 2
    padded = jnp.pad(frames, ((0, 0), (before, KERNEL - STRIDE - before + STRIDE), (0, 0)))
    num = t // STRIDE
    return jnp.concatenate(
        [padded[:, k : k + num * STRIDE : STRIDE][:, :num] for k in range(KERNEL)], axis=-1
    )
