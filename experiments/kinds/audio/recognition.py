"""The task "ctc", which recognizes phone sequences with a head trained by CTC.

As in CPC_audio and Libri-light, the head is a convolution over 8 frames with stride 4, optionally
after an LSTM layer.
"""

import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cpc import evaluate
from cpc.data import SAMPLE_RATE_HZ, SILENCES, Recordings, read_all
from cpc.evaluate.embeddings import continue_mirrored
from cpc.models import LSTM
from cpc.results import Outcomes, Score, digest
from cpc.train import ProgressWriter, scale_by_layer
from cpc.types import Array, Batch, UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import (
    TRAINED,
    AudioData,
    Phones,
    aligned,
    labelled_sets,
    subset_minutes,
)
from experiments.kinds.audio.supervised import contexts_of
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask
from experiments.training.supervised import Features, Recipe, hold_out, train_on_labels

KERNEL, STRIDE = 8, 4
BATCH, LSTM_WIDTH = 8, 256
LEARNING_RATE = 1e-3
#: Accuracy up to which a head is considered untrained, because constant outputs can reach it.
LUCK = 0.05


class Labelled(NamedTuple):
    """Utterances, as arrays (frames, features) or as samples, with their phone sequences."""

    inputs: Sequence[np.ndarray]
    phones: Sequence[list[int]]


class Network(NamedTuple):
    """A network that computes the head's inputs."""

    features: Features
    variables: Any
    stride: int
    """Number of input entries per frame."""
    layer_decay: float = 1.0
    """Factor of the learning rate from a layer to the layer below."""
    ahead: int = 0
    """Number of later frames that a frame depends on."""


def standardized_features(inputs: Sequence[np.ndarray]) -> Network:
    """Return a network without parameters that standardizes features."""
    rows = np.concatenate(inputs)
    mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6

    def features(params, extra, batch, rng, train):
        return (batch["x"] - mean) / scale, extra

    return Network(features, {"params": {}}, stride=1)


def fit_head(
    config: Config, network: Network, train: Labelled, num_phones: int, folder: pathlib.Path
) -> tuple[Callable[[Sequence[np.ndarray]], list[np.ndarray]], str]:
    """Train a head by CTC, together with the network if the network has parameters.

    Early stopping uses a held-out tenth of the utterances. Returns a function from inputs to
    log-probabilities (t, num_phones + 1), whose last class is the blank, and a text about the
    training length.
    """
    rng = jax.random.key(config.seed + 3)
    kept, held = hold_out(len(train.inputs), config.seed)
    ahead = -(-((KERNEL - STRIDE) // 2 + network.ahead) // STRIDE)  # in outputs of the head
    draw = draw_utterances(subset(train, kept), network.stride, config.seed)
    features, variables = head_inputs(config, network, draw(0), rng)

    def answer_with(answer, inputs):
        return evaluate.embed_utterances(answer, inputs, network.stride * STRIDE, ahead=ahead)

    wanted = subset(train, held)
    console = ProgressWriter(config.probe.ctc_steps)
    by_layer = scale_by_layer(network.layer_decay, ("context", "encoder"))
    recipe = Recipe(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(LEARNING_RATE), by_layer),
        config.probe.ctc_steps,
        evaluate_every=max(10, config.probe.ctc_steps // 40),
        accuracy=lambda answer: validation_score(answer_with(answer, wanted.inputs), wanted.phones),
        loss=ctc_loss,
    )
    labels = digest(num_phones, json.dumps([*train.phones]))
    how: dict[str, Any] = {"rng": rng, "writers": (console,), "folder": folder}
    how["settings"] = {"utterances": len(train.inputs), "labels": labels}
    answer, words = train_on_labels(
        config, features, variables, draw, recipe, num_classes=num_phones + 1, **how
    )
    console.close()
    return functools.partial(answer_with, answer), words


def ctc_loss(scores: Array, batch: Batch) -> Array:
    """Return the mean CTC loss in nats per utterance."""
    nats, count = evaluate.ctc_nats(scores, batch["num_frames"], batch["phones"])
    return nats / jnp.maximum(count, 1)


def subset(utterances: Labelled, numbers: Sequence[int]) -> Labelled:
    """Return the utterances with the given indices."""
    inputs, phones = utterances
    return Labelled([inputs[i] for i in numbers], [phones[i] for i in numbers])


def draw_utterances(train: Labelled, stride: int, seed: int) -> Callable[[int], Batch]:
    """Return draw(step), which returns a batch of whole utterances with `stride` entries per frame.

    Utterances are padded to the longest length as in `embed_utterances`, because the head's last
    output sees 2 frames beyond the end.
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
            "phones": pad([train.phones[i] for i in drawn], -1, most),
        }

    return draw


def head_inputs(
    config: Config, network: Network, batch: Batch, rng: Array
) -> tuple[Features, dict[str, Any]]:
    """Return a function that computes the head's inputs, and the variables that it takes."""
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


def validation_score(given: Sequence[np.ndarray], wanted: Sequence[Sequence[int]]) -> float:
    """Return the accuracy of greedy decoding, plus the likelihood as a tie-breaker."""
    edits = list(map(evaluate.count_edits, wanted, map(evaluate.greedy_decode, given)))
    lengths = np.array(list(map(len, given)))
    nats, count = jax.jit(evaluate.ctc_nats)(pad(given, 0.0), lengths, pad(wanted, -1))
    likelihood = float(jnp.exp(-nats / count)) if count else 0.0
    right = 1 - np.sum(edits) / max(1, sum(map(len, wanted)))
    # At first, outputs stay empty for many steps, and only the likelihood prevents early stopping.
    return float((right if right > LUCK else 0.0) + 1e-3 * likelihood)


def pad(rows: Sequence[Any], value: float | int, length: int = 0) -> np.ndarray:
    """Pad rows of unequal length with a value and return them as one array.

    >>> pad([[1, 2], [3]], -1)
    array([[ 1,  2],
           [ 3, -1]], dtype=int32)
    """
    length, dtype = max(length, *map(len, rows)), np.int32 if isinstance(value, int) else np.float32
    made = np.full((len(rows), length, *np.shape(rows[0])[1:]), value, dtype)
    for row, own in zip(made, rows, strict=True):
        row[: len(own)] = own
    return made


def windows_of(frames: Array) -> Array:
    """Concatenate the 8 frames that each of the head's outputs sees, (b, t // 4, 8 d).

    A linear map of the concatenated frames is a convolution with kernel 8 and stride 4. Each output
    also sees the 2 frames before and after its own 4 frames. Frames beyond either end are zero.
    """
    before, num = (KERNEL - STRIDE) // 2, frames.shape[1] // STRIDE
    padded = jnp.pad(frames, ((0, 0), (before, KERNEL - before), (0, 0)))
    rows = STRIDE * np.arange(num)[:, None] + np.arange(KERNEL)
    return padded[:, rows].reshape(len(frames), num, -1)


def recognition_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return a phone recognition task for each set of phone labels."""
    minutes = config.probe.ctc_minutes
    return [recognition_task(minutes, *one) for one in labelled_sets(data, "ctc")]


def inputs_of(part: Recordings, features: FeatureSet) -> list[np.ndarray]:
    """Return each utterance's frames, or its samples for a network that is trained on labels."""
    if features.name in TRAINED:
        return [read_all(part, i) for i in range(len(part))]
    return [*features.values.read(part.names)]


def recognition_task(
    minutes: Sequence[float], data: str, phones: Phones, parts: tuple[Recordings, ...]
) -> ProbeTask:
    """Return a task that measures the phone error rate for each amount of training data."""
    for part in parts:
        aligned(part, phones)  # raises if labels do not fit
    most = 0 if 0 in minutes else max(minutes)
    parts = subset_minutes(parts[0], most, by_speaker=False), parts[1]
    subsets = subsets_of(parts[0], minutes)
    in_order = [
        [phones_in_order(phones.labels[own], phones.names) for own in part.names] for part in parts
    ]
    check_phones(in_order, subsets, data)
    counts = np.array(list(map(len, in_order[1])))
    items = digest("ctc", np.concatenate(in_order[1]), counts)

    def answer(context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
        config, feature = context.config, features.name
        if feature not in TRAINED and not features.values.by_utterance:  # the feature "layers"
            return
        train, test = map(Labelled, (inputs_of(part, features) for part in parts), in_order)
        head, width = config.probe.ctc_head, config.probe.ctc_beam
        decoders = {head: evaluate.greedy_decode}
        if width > 1:
            decoders[f"{head}, beam {width}"] = functools.partial(evaluate.beam_decode, width=width)
        for length, numbers in subsets.items():
            part = subset(train, numbers)
            print(f"CTC on {feature} of {data}, {length} in {len(numbers)} utterances:")
            folder = context.folder_of(f"ctc-{feature}-{data}-{len(numbers)}")
            network = network_of(context, feature, part.inputs)
            recognise, words = fit_head(config, network, part, len(phones.names), folder)
            given = recognise(test.inputs)
            for method, decode in decoders.items():
                edits = np.array(list(map(evaluate.count_edits, test.phones, map(decode, given))))
                kinds = zip(evaluate.Edits._fields, edits.sum(axis=0) / counts.sum(), strict=True)
                rates = ", ".join(f"{rate:.1%} {kind}" for kind, rate in kinds)
                print(f"{method}, {words}: {rates}")
                low, high = evaluate.bootstrap_interval(edits.sum(axis=1).astype(float), counts)
                yield Score(
                    "CTC", data, "phone", feature, method, "phone error rate",
                    float(edits.sum() / counts.sum()), low, high, higher_is_better=False,
                    num_train=sum(map(len, part.phones)), num_test=int(counts.sum()),
                    setting=length, outcomes=Outcomes(edits.sum(axis=1), counts, items),
                )  # fmt: skip

    return ProbeTask("ctc", answer, parts=parts)


def network_of(context: ProbeContext, feature: str, inputs: Sequence[np.ndarray]) -> Network:
    """Return the network between a feature and the head.

    Frames are only standardized. Networks trained on labels are trained together with the head.
    """
    config, model, variables, layer_decay = context.config, context.model, context.variables, 1.0
    if feature not in TRAINED:
        return standardized_features(inputs)
    if feature == "tuned":
        layer_decay = config.probe.layer_decay
    else:
        window = np.zeros((1, config.data.window_samples), np.float32)
        variables = model.init(jax.random.key(config.seed + 2), {"x": window})
    encoder = model.module.encoder
    ahead = encoder.frames_around[1]
    return Network(contexts_of(model), variables, encoder.stride, layer_decay, ahead)


def phones_in_order(labels: np.ndarray, names: Sequence[str]) -> list[int]:
    """Return the phone sequence, without silences, of labels that are 10 ms apart.

    Equal neighbouring labels count as one phone, unless a silence separates them.

    >>> phones_in_order(np.array([2, 2, 0, 0, 1, -1, 1, 2, 2]), ["a", "b", "pau"])
    [0, 1, 1]
    """
    silent = [i for i, name in enumerate(names) if name in SILENCES]
    changes = np.append(True, labels[1:] != labels[:-1])[: len(labels)]
    kept = labels[changes]
    return kept[(kept >= 0) & ~np.isin(kept, silent)].tolist()


def subsets_of(recordings: Recordings, minutes: Sequence[float]) -> dict[str, list[int]]:
    """Return utterance indices for each amount of training data, keyed by names such as "10 min".

    Names contain the requested amount. The actual length is larger by a part of the last utterance,
    which depends on the seed. If the recordings are shorter than the amount, the name contains
    their length.
    """
    numbers = {name: i for i, name in enumerate(recordings.names)}
    found: dict[str, list[int]] = {}
    for most in minutes:
        part = subset_minutes(recordings, most, by_speaker=False)
        length = float(part.lengths.sum()) / SAMPLE_RATE_HZ / 60
        words = f"{most:g}" if 0 < most <= length else f"{length:.{int(length < 10)}f}"
        drawn = [numbers[name] for name in part.names]
        if found.get(f"{words} min", drawn) != drawn:  # e.g. 10 minutes out of 10.4
            words = f"{length:.2f}"
        found[f"{words} min"] = drawn
    return found


def check_phones(
    parts: Sequence[Sequence[Sequence[int]]], subsets: Mapping[str, Sequence[int]], name: str
) -> None:
    """Check that training and test sets have phones, and each training subset two utterances."""
    for which, phones in zip(("training", "test"), parts, strict=True):
        if not sum(len(own) for own in phones):
            raise UserError(f"the {which} utterances of {name} are all silent: label phones")
    if min(map(len, subsets.values())) < 2:
        raise UserError(
            f"the smallest value of probe.ctc_minutes gives one labelled training utterance of "
            f"{name}, but early stopping needs two: raise this value, or label more utterances"
        )
