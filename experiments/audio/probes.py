"""Probes of audio features: phones and speakers, from z, c, MFCC and a network never trained.

And, to compare them with, the same network trained on the labels.
"""

import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cpc.data import (
    SAMPLE_RATE_HZ,
    Recordings,
    align,
    make_batches,
    read_all,
    select,
)
from cpc.evaluate import (
    answer_scores,
    embed_utterances,
    mfcc,
    probe_scores,
    with_neighbours,
)
from cpc.models import Model
from cpc.results import Score, print_scores, write_scores
from cpc.train import ProgressWriter, make_optimizer, scale_by_layer
from cpc.types import UserError
from experiments.audio import recognition
from experiments.audio.abx import (
    AbxQuestion,
    abx_question,
    abx_scores,
    item_question,
    record_items,
)
from experiments.audio.data import (
    AudioData,
    first_minutes,
    frame_samples,
    labels_at,
    name_of,
    num_labels,
)
from experiments.command.config import Config
from experiments.command.run_dir import write_latest
from experiments.supervised import MOST_RUNS, hold_out, train_on_labels

#: Points of the map of speakers: means of c over pieces of this many latents.
PIECE_LATENTS = 128
MAX_POINTS = 1500
#: Features that are networks trained on the labels, which answer by themselves.
TRAINED = {"supervised": "trained on", "tuned": "fine-tuned to"}
#: Frames on either side of one of "mfcc context": 170 ms.
NEIGHBOURS = 8


class Question(NamedTuple):
    """What a probe is asked: utterances to train and to test on, and their labels."""

    task: str
    data: str
    num_classes: int
    parts: tuple[Recordings, Recordings]
    labels: Any
    """Of each part and utterance: a label each 10 ms or, for ctc, the phones in their order."""
    units: tuple[str, ...] = ("frame",)


def check_options(config: Config) -> None:
    """Check what no data could make work, before anything is read."""
    options = config.probe
    if options.tasks and not options.features:
        raise UserError("probe.features is empty: name one or more, or set probe.tasks to ()")
    if options.every and "supervised" in options.features:
        raise UserError(
            f"probe.every is {options.every}, and each time the supervised network would be "
            "trained anew, with the same result: set probe.every to 0, or take supervised out of "
            "probe.features"
        )
    if "ctc" in options.tasks and not options.ctc_minutes:
        raise UserError("probe.ctc_minutes is empty: name minutes of labels, or 0 for all")
    if options.tasks and config.model.padding == "valid":
        raise UserError(
            "model.padding is valid, which gives fewer latents than there are labels: probe with "
            "causal or same padding, or set probe.tasks to ()"
        )


def check_data(config: Config, data: AudioData) -> None:
    """Check, before the training, that these data can feed the probes."""
    if "speakers" in config.probe.tasks:
        _speaker_names(data)
        _check_supervised(config, _of_speakers(config, data.train), name_of(config))
    asking = [task for task in ("phones", "ctc", "abx") if task in config.probe.tasks]
    if asking and not (asking == ["abx"] and data.items):
        _check_labels(data, asking[0])
    if "abx" in asking:
        abx_questions(config, data)
    if not {"phones", "ctc"} & {*asking}:
        return
    for name, phones in data.phones.items():
        for which, recordings in (("training", data.train), ("test", data.test)):
            part = _labelled(recordings, phones.labels)
            if not len(part):
                raise UserError(
                    f"no {which} utterance has labels in {name}: do its utterance ids belong to "
                    "these recordings?"
                )
            for utterance, length in zip(part.names, part.lengths, strict=True):
                align(phones.labels[utterance], num_labels(length), utterance)
        if "phones" in asking:
            _check_supervised(config, _of_phones(config, data.train, phones), name)
    if "ctc" in asking:
        for question in recognition_questions(config, data):
            subsets = subsets_of(question.parts[0], config.probe.ctc_minutes)
            recognition.check_phones(question.labels, subsets, question.data)


def _check_labels(data, task):
    if not data.phones:
        raise UserError(
            f"there are no phone labels for a probe of {task}: set data.phones to an alignment "
            f"file, or take {task} out of probe.tasks"
        )


def run_tasks(
    config: Config,
    workdir: pathlib.Path,
    data: AudioData,
    model: Model,
    variables: Any,
    step: int,
) -> list[Score]:
    """Fit the probes of each task, print their scores, and record them in the run directory.

    Each utterance is embedded once for all tasks, and features come one after the other, for they
    can fill the memory.
    """
    begin = time.perf_counter()
    ask = {
        "phones": phone_questions,
        "speakers": speaker_questions,
        "ctc": recognition_questions,
        "abx": abx_questions,
    }
    questions = [question for task in config.probe.tasks for question in ask[task](config, data)]
    for question in questions:
        if isinstance(question, AbxQuestion):
            record_items(workdir / "probes", question)
    embed = make_embed(config, model, variables)
    parts = [part for question in questions for part in question.parts]
    to_map = [first_minutes(data.test, 5.0)] if "speakers" in config.probe.tasks else []
    scores: list[Score] = []
    for names in passes((*(["c"] if to_map else []), *config.probe.features)):
        own = to_map if "c" in names else []
        made = {} if names[0] in TRAINED else embed(names, [*parts, *own])
        for part in own:
            points, speaker, speakers = map_speakers(part, made["c"])
            path = workdir / "probes" / "speaker_map.npz"
            write_latest(path, step, features=points, speaker=speaker, names=speakers)
        found = [
            score._replace(seed=config.seed, step=step)
            for question in questions
            for name in names
            if name in config.probe.features
            for score in scores_of(
                config, workdir / "probes", model, variables, question, name, made.get(name, {})
            )
        ]
        del made
        write_scores(workdir, found)
        scores += found
    order = config.probe.features
    for task in config.probe.tasks:
        print(f"probe of {task} at step {step:,}")
        print_scores(
            sorted(
                (score for score in scores if score.task.lower() == task),
                key=lambda score: (score.data, order.index(score.features)),
            )
        )
    print(f"all probes took {time.perf_counter() - begin:.0f} s")
    return scores


def passes(features: Sequence[str]) -> list[tuple[str, ...]]:
    """Features by the pass over the sound that makes them: those of one network come together.

    >>> passes(("c", "mfcc", "random c", "z"))
    [('c', 'z'), ('mfcc',), ('random c',)]
    """
    kinds = {"c": "trained", "z": "trained", "random c": "untrained", "random z": "untrained"}
    kinds |= {"mfcc": "mfcc", "mfcc context": "mfcc"}
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(features):
        found.setdefault(kinds.get(name, name), []).append(name)
    return [tuple(names) for names in found.values()]


def make_embed(
    config: Config, model: Model, variables: Any
) -> Callable[[Sequence[str], Sequence[Recordings]], dict[str, dict[str, Any]]]:
    """Return embed(names, parts): features of one of the `passes`, by name and utterance.

    Each utterance of the parts is embedded once; its features are (frames, width), one frame each
    `frame_samples`. Networks trained on labels, which answer by themselves, have none.
    """
    window = np.zeros((1, config.data.window_samples), np.float32)
    z_width = jax.eval_shape(model.embed, variables, window)[0].shape[-1]

    # The weights are an argument: compiled once for both networks.
    @functools.partial(jax.jit, static_argnums=0)
    def side_by_side(kinds, variables, x):
        made = dict(zip("zc", model.embed(variables, x), strict=True))
        return jnp.concatenate([made[kind] for kind in kinds], axis=-1)

    def embed(names, parts):
        utterances = {name: (part, i) for part in parts for i, name in enumerate(part.names)}
        waveforms = [read_all(*place) for place in utterances.values()]
        stride = frame_samples(names[0], model)
        if "mfcc" in names[0]:
            found = dict(zip(utterances, embed_utterances(mfcc, waveforms, stride), strict=True))
            made: dict[str, dict[str, Any]] = {"mfcc": found}
            if "mfcc context" in names:
                around = (with_neighbours(frames, NEIGHBOURS) for frames in found.values())
                made["mfcc context"] = dict(zip(found, around, strict=True))
            return made
        is_random = names[0].startswith("random")
        own = model.init(jax.random.key(config.seed + 1), {"x": window}) if is_random else variables
        kinds = "".join(kind for kind in "zc" if any(name[-1] == kind for name in names))
        function = functools.partial(side_by_side, kinds, own)
        found = dict(zip(utterances, embed_utterances(function, waveforms, stride), strict=True))
        columns = {"z": slice(z_width), "c": slice(z_width if "z" in kinds else 0, None)}
        delays = {"z": 0, "c": config.probe.delay}
        return {
            name: {
                utterance: delayed(x[:, columns[name[-1]]], delays[name[-1]])
                for utterance, x in found.items()
            }
            for name in names
        }

    return embed


def delayed(frames: np.ndarray, by: int) -> np.ndarray:
    """Return for each frame the one that comes so many later, the last one at the end.

    >>> delayed(np.array([[1], [2], [3]]), 2).ravel()
    array([3, 3, 3])
    """
    return frames[np.minimum(np.arange(len(frames)) + by, len(frames) - 1)] if by else frames


def phone_questions(config: Config, data: AudioData) -> list[Question]:
    """Return the question of frame-wise phones, for every labelled set."""
    questions = []
    for name, phones in data.phones.items():
        train, test = _of_phones(config, data.train, phones), _labelled(data.test, phones.labels)
        labels = [
            [
                align(phones.labels[utterance], num_labels(length), utterance)
                for utterance, length in zip(part.names, part.lengths, strict=True)
            ]
            for part in (train, test)
        ]
        questions.append(Question("phones", name, len(phones.names), (train, test), labels))
    return questions


def speaker_questions(config: Config, data: AudioData) -> list[Question]:
    """Return the question of speakers, by frame and by utterance."""
    names = _speaker_names(data)
    known = [i for i, speaker in enumerate(data.test.speakers) if speaker in names]
    train, test = (_of_speakers(config, part) for part in (data.train, select(data.test, known)))
    labels = [
        [
            np.full(num_labels(length), names.index(speaker), np.int32)
            for speaker, length in zip(part.speakers, part.lengths, strict=True)
        ]
        for part in (train, test)
    ]
    units = "frame", "utterance"
    source = name_of(config)
    return [Question("speakers", source, len(names), (train, test), labels, units)]


def recognition_questions(config: Config, data: AudioData) -> list[Question]:
    """Return the question of phones in their order, for every labelled set."""
    questions, minutes = [], config.probe.ctc_minutes
    for name, phones in data.phones.items():
        train = _labelled(data.train, phones.labels)
        train = first_minutes(train, 0 if 0 in minutes else max(minutes), by_speaker=False)
        parts = train, _labelled(data.test, phones.labels)
        labels = [
            [recognition.phones_in_order(phones.labels[own], phones.names) for own in part.names]
            for part in parts
        ]
        questions.append(Question("ctc", name, len(phones.names), parts, labels, ("phone",)))
    return questions


def abx_questions(config: Config, data: AudioData) -> list[AbxQuestion]:
    """Return what is asked of the test utterances of every labelled set, and by item files."""
    by_phones = [
        abx_question(name, _labelled(data.test, phones.labels), phones)
        for name, phones in data.phones.items()
    ]
    parts = data.train, data.test
    return by_phones + [item_question(name, own, parts) for name, own in data.items.items()]


def scores_of(
    config: Config,
    folder: pathlib.Path,
    model: Model,
    variables: Any,
    question: Question | AbxQuestion,
    feature: str,
    features: Mapping[str, Any],
) -> list[Score]:
    """Return what one feature, given by utterance, answers to a question."""
    if isinstance(question, AbxQuestion):
        stride, lose = frame_samples(feature, model), config.probe.lose_last_frame
        return abx_scores(question, feature, features, stride, lose)
    task, data, num_classes, parts, labels_each_10_ms, units = question
    start = variables if feature == "tuned" else None
    if task == "ctc":
        return recognition_scores(config, folder, model, start, question, feature, features)
    labels = [
        labels_of_frames(part, own, frame_samples(feature, model))
        for part, own in zip(parts, labels_each_10_ms, strict=True)
    ]
    words = {"task": task, "data": data, "units": units}
    if feature in TRAINED:
        print(f"the network {TRAINED[feature]} {task} of {data}:")
        own = folder / f"{feature}-{task}-{data}"
        answer, setting = train_supervised(
            config, own, model, parts[0], labels_each_10_ms[0], num_classes, start
        )
        answers = answer(parts[1])
        return list(answer_scores(answers, *labels, features=feature, setting=setting, **words))
    train, test = ({feature: [features[name] for name in part.names]} for part in parts)
    return list(
        probe_scores(
            train,
            test,
            *labels,
            hidden_widths=_hidden_widths(config),
            num_classes=num_classes,
            num_epochs=config.probe.num_epochs,
            **words,
        )
    )


def recognition_scores(
    config: Config,
    folder: pathlib.Path,
    model: Model,
    start: Any,
    question: Question,
    feature: str,
    features: Mapping[str, Any],
) -> list[Score]:
    """Return phone error rates of one feature, or of the network trained whole from `start`."""
    _, data, num_classes, parts, phones, _ = question
    if feature in TRAINED:
        window = np.zeros((1, config.data.window_samples), np.float32)
        rng = jax.random.key(config.seed + 2)
        begin = model.init(rng, {"x": window}) if start is None else start
        decay = 1.0 if start is None else config.probe.layer_decay
        network = functools.partial(recognition.trained, model, begin, decay)
        inputs = [[read_all(part, i) for i in range(len(part))] for part in parts]
    else:
        network = recognition.frozen
        inputs = [[np.asarray(features[name]) for name in part.names] for part in parts]
    train, test = map(recognition.Labelled, inputs, phones)
    own, subsets = folder / f"ctc-{feature}-{data}", subsets_of(parts[0], config.probe.ctc_minutes)
    return list(
        recognition.recognise(
            config, own, network, train, test, num_classes, subsets, data=data, features=feature
        )
    )


def subsets_of(recordings: Recordings, minutes: Sequence[float]) -> dict[str, list[int]]:
    """Return the numbers of utterances drawn up to each of so many minutes, by their length."""
    numbers = {name: i for i, name in enumerate(recordings.names)}
    found = {}
    for most in minutes:
        part = first_minutes(recordings, most, by_speaker=False)
        length = float(part.lengths.sum()) / SAMPLE_RATE_HZ / 60
        found[f"{length:.{int(length < 10)}f} min"] = [numbers[name] for name in part.names]
    return found


def labels_of_frames(
    recordings: Recordings, labels: Sequence[np.ndarray], stride: int
) -> list[np.ndarray]:
    """Return the label of each of a feature's frames, of recordings with a label each 10 ms."""
    return [
        labels_at(own, 0, max(1, int(length) // stride), stride)
        for own, length in zip(labels, recordings.lengths, strict=True)
    ]


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
        return embed_utterances(answer, waveforms, encoder.stride)

    stop_by = select(recordings, held.tolist())
    labels_of = labels_of_frames(stop_by, [labels[i] for i in held], encoder.stride)
    expected = np.concatenate(labels_of)

    def accuracy(answer):
        given = np.concatenate(answer_with(answer, stop_by)).argmax(1)
        return (given == expected)[expected >= 0].mean()

    own = ("learning_rate", "warmup_steps", "clip_norm", "weight_decay")
    num_steps = MOST_RUNS * config.num_steps
    tx, _ = make_optimizer(num_steps=num_steps, **{name: config.optim[name] for name in own})
    decay = 1.0 if start is None else config.probe.layer_decay
    tx = optax.chain(tx, scale_by_layer(decay, ("context", "encoder")))
    hours = options.batch_size * options.window_samples / SAMPLE_RATE_HZ / 3600
    console = ProgressWriter(num_steps, rate=(hours, "h audio"))
    answer, words = train_on_labels(
        recognition.contexts_of(model),
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


def _speaker_names(data: AudioData) -> list[str]:
    names = sorted(set(data.train.speakers))
    if len(names) < 2:
        raise UserError(
            f"these recordings have one speaker ({', '.join(names)}), which leaves a probe of "
            "speakers nothing to tell apart: take speakers out of probe.tasks, or set "
            "data.speaker_level"
        )
    return names


def _of_speakers(config, recordings):
    return first_minutes(recordings, config.probe.minutes_per_speaker)


def _of_phones(config, recordings, phones):
    part = _labelled(recordings, phones.labels)
    return first_minutes(part, 60 * config.probe.hours, by_speaker=False)


def _check_supervised(config, part, name):
    """The supervised network stops by utterances that it is not trained on."""
    for feature in TRAINED:
        if feature in config.probe.features and len(part) < 2:
            raise UserError(
                f"{name} has one labelled training utterance, but the {feature} network needs "
                f"another to stop by: take {feature} out of probe.features, or label more"
            )


def map_speakers(
    recordings: Recordings, features: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means of c over pieces of utterances, for a map like the paper's Figure 2."""
    names = sorted(set(recordings.speakers))
    points, speakers = [], []
    for utterance, speaker in zip(recordings.names, recordings.speakers, strict=True):
        c = features[utterance]
        for start in range(0, max(1, len(c) - PIECE_LATENTS // 2), PIECE_LATENTS):
            points.append(c[start : start + PIECE_LATENTS].mean(0))
            speakers.append(names.index(speaker))
    chosen = np.random.default_rng(0).permutation(len(points))[:MAX_POINTS]
    return np.asarray(points, np.float32)[chosen], np.asarray(speakers)[chosen], np.asarray(names)


def _labelled(recordings, labels):
    return select(recordings, [i for i, name in enumerate(recordings.names) if name in labels])


def _hidden_widths(config):
    return (0, config.probe.hidden_width) if config.probe.hidden_width else (0,)
