"""The task "ctc": phones of whole utterances in their order, by a head trained without times.

The head is that of CPC_audio and Libri-light: a convolution over 8 frames every 4, by itself or
above an LSTM layer.
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
from experiments.kinds.audio.data import TRAINED, AudioData, aligned, first_minutes, labelled_sets
from experiments.kinds.audio.supervised import contexts_of
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask
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

    Returns a function from inputs to log-probabilities (t, num_phones + 1), the blank last, and in
    words how long training took, which ends when a held-out tenth improves no more.
    """
    rng = jax.random.key(config.seed + 3)
    held = hold_out(range(len(train.inputs)), config.seed).tolist()
    kept = np.setdiff1d(np.arange(len(train.inputs)), held).tolist()
    ahead = -(-((KERNEL - STRIDE) // 2 + network.ahead) // STRIDE)  # answers that one sees into
    draw = draw_utterances(pick(train, kept), network.stride, config.seed)
    features, variables = under_head(config, network, draw(0), rng)

    def answer_with(answer, inputs):
        return evaluate.embed_utterances(answer, inputs, network.stride * STRIDE, ahead=ahead)

    wanted = pick(train, held)
    console = ProgressWriter(config.probe.ctc_steps)
    by_layer = scale_by_layer(network.layer_decay, ("context", "encoder"))
    recipe = Recipe(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(LEARNING_RATE), by_layer),
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
    nats, count = evaluate.ctc_nats(scores, batch["num_frames"], batch["phones"])
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
    edits = [
        evaluate.count_edits(own, evaluate.greedy_decode(one))
        for own, one in zip(wanted, given, strict=True)
    ]
    nats, count = jax.jit(evaluate.ctc_nats)(
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


def recognition_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of phones in their order, for every labelled set."""
    minutes, tasks = config.probe.ctc_minutes, []
    for name, phones, (train, test) in labelled_sets(data, "ctc"):
        for part in (train, test):
            aligned(part, phones)  # which checks them
        train = first_minutes(train, 0 if 0 in minutes else max(minutes), by_speaker=False)
        parts, subsets = (train, test), subsets_of(train, minutes)
        in_order = [
            [phones_in_order(phones.labels[own], phones.names) for own in part.names]
            for part in parts
        ]
        check_phones(in_order, subsets, name)
        answer = functools.partial(recognise, name, len(phones.names), subsets, parts, in_order)
        tasks.append(ProbeTask("ctc", answer, parts=parts))
    return tasks


def inputs_of(part: Recordings, features: FeatureSet) -> list[np.ndarray]:
    """Return the frames of utterances, or their samples for networks that take these."""
    if features.name in TRAINED:
        return [read_all(part, i) for i in range(len(part))]
    return [evaluate.read_rows(features.values.by_utterance[name]) for name in part.names]


def recognise(
    data: str,
    num_phones: int,
    subsets: Mapping[str, Sequence[int]],
    parts: tuple[Recordings, Recordings],
    in_order: Sequence[Sequence[list[int]]],
    context: ProbeContext,
    features: FeatureSet,
) -> Iterator[Score]:
    """Yield phone error rates on test utterances after training on each of the subsets."""
    config, feature = context.config, features.name
    if feature not in TRAINED and not features.values.by_utterance:  # layers
        return
    train, test = (
        Labelled(inputs_of(part, features), own) for part, own in zip(parts, in_order, strict=True)
    )
    counts = np.array([len(phones) for phones in test.phones])
    items = digest("ctc", np.concatenate(test.phones), counts)
    head, width = config.probe.ctc_head, config.probe.ctc_beam
    decoders = {head: evaluate.greedy_decode}
    if width > 1:
        decoders[f"{head}, beam {width}"] = functools.partial(evaluate.beam_decode, width=width)
    for length, subset in subsets.items():
        part = pick(train, subset)
        print(f"CTC on {feature} of {data}, {length} in {len(subset)} utterances:")
        folder = context.folder_of(f"ctc-{feature}-{data}-{len(subset)}")
        network = network_of(context, feature, part.inputs)
        answer, words = fit_head(config, network, part, num_phones, folder)
        given = answer(test.inputs)
        for method, decode in decoders.items():
            edits = np.array(
                [
                    evaluate.count_edits(own, decode(one))
                    for own, one in zip(test.phones, given, strict=True)
                ]
            )
            kinds = zip(evaluate.Edits._fields, edits.sum(axis=0) / counts.sum(), strict=True)
            print(f"{method}, {words}: " + ", ".join(f"{rate:.1%} {kind}" for kind, rate in kinds))
            low, high = evaluate.bootstrap_interval(edits.sum(axis=1).astype(float), counts)
            yield Score(
                "CTC", data, "phone", feature, method, "phone error rate",
                float(edits.sum() / counts.sum()), low, high, higher_is_better=False,
                num_train=sum(map(len, part.phones)), num_test=int(counts.sum()),
                setting=length, outcomes=Outcomes(edits.sum(axis=1), counts, items),
            )  # fmt: skip


def network_of(context: ProbeContext, feature: str, inputs: Sequence[np.ndarray]) -> Network:
    """Return what lies under the head: nothing but a scale, or the network that is trained on."""
    config, model, variables, layer_decay = context.config, context.model, context.variables, 1.0
    if feature not in TRAINED:
        return frozen(inputs)
    if feature == "tuned":
        layer_decay = config.probe.layer_decay
    else:
        window = np.zeros((1, config.data.window_samples), np.float32)
        variables = model.init(jax.random.key(config.seed + 2), {"x": window})
    encoder = model.module.encoder
    ahead = encoder.frames_around[1]
    return Network(contexts_of(model), variables, encoder.stride, layer_decay, ahead)


def phones_in_order(labels: np.ndarray, names: Sequence[str]) -> list[int]:
    """Return the phones of an alignment of one label each 10 ms, without silences.

    A phone that follows itself is one phone: an alignment does not tell. A silence between is told.

    >>> phones_in_order(np.array([2, 2, 0, 0, 1, -1, 1, 2, 2]), ["a", "b", "pau"])
    [0, 1, 1]
    """
    silent = [i for i, name in enumerate(names) if name in SILENCES]
    changes = np.append(True, labels[1:] != labels[:-1])[: len(labels)]
    kept = labels[changes]
    return kept[(kept >= 0) & ~np.isin(kept, silent)].tolist()


def subsets_of(recordings: Recordings, minutes: Sequence[float]) -> dict[str, list[int]]:
    """Return the numbers of utterances drawn up to each of so many minutes, by these.

    By the length that there is where it is less: the last utterance drawn, which goes beyond what
    was asked for, differs by seed.
    """
    numbers = {name: i for i, name in enumerate(recordings.names)}
    found: dict[str, list[int]] = {}
    for most in minutes:
        part = first_minutes(recordings, most, by_speaker=False)
        length = float(part.lengths.sum()) / SAMPLE_RATE_HZ / 60
        words = f"{most:g}" if 0 < most <= length else f"{length:.{int(length < 10)}f}"
        drawn = [numbers[name] for name in part.names]
        if found.get(f"{words} min", drawn) != drawn:  # 10 minutes, of 10.4 in all
            words = f"{length:.2f}"
        found[f"{words} min"] = drawn
    return found


def check_phones(
    parts: Sequence[Sequence[Sequence[int]]], subsets: Mapping[str, Sequence[int]], name: str
) -> None:
    """Check that there is something to recognise, and to learn it from."""
    for which, phones in zip(("training", "test"), parts, strict=True):
        if not sum(len(own) for own in phones):
            raise UserError(f"the {which} utterances of {name} have no phones but silence")
    if min(map(len, subsets.values())) < 2:
        raise UserError(
            f"the fewest of probe.ctc_minutes hold one labelled training utterance of {name}, but "
            "a CTC head needs another to stop by: give more minutes, or label more"
        )
