"""Probes of audio features: z, c, MFCC, an untrained network's, and networks trained on labels.

Each task is a file that makes questions; here every utterance is embedded once for all of them.
"""

import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.data import Recordings, read_all
from cpc.evaluate import embed_pieces, embed_utterances, mfcc, with_neighbours
from cpc.models import Model
from cpc.results import Score, print_scores, write_scores
from cpc.train import raise_if_stopped
from cpc.types import UserError
from experiments.command.config import Config
from experiments.command.run_dir import write_latest
from experiments.kinds.audio.abx import abx_questions
from experiments.kinds.audio.boundaries import boundary_questions
from experiments.kinds.audio.codes import code_questions
from experiments.kinds.audio.data import AudioData, first_minutes, frame_samples
from experiments.kinds.audio.frames import phone_questions, speaker_questions
from experiments.kinds.audio.question import TRAINED, Asked, Feature, Question
from experiments.kinds.audio.recognition import recognition_questions
from experiments.training.embedding import make_embed_long
from experiments.training.supervised import kept_until_done

#: Task -> its questions(config, data), which say in one sentence what the data cannot feed.
TASKS: dict[str, Callable[[Config, AudioData], list[Question]]] = {
    "phones": phone_questions,
    "speakers": speaker_questions,
    "ctc": recognition_questions,
    "abx": abx_questions,
    "boundaries": boundary_questions,
    "codes": code_questions,
}
#: Points of the map of speakers: means of c over pieces of this many latents.
PIECE_LATENTS = 128
MAX_POINTS = 1500
#: Frames on either side of one of "mfcc context": 170 ms.
NEIGHBOURS = 8
#: MFCC of about so many frames take as long as the compilation for one more length.
MFCC_SHAPE_FRAMES = 400_000
#: Frames after its own that one of MFCC sees into: four of differences, and the window's end.
MFCC_AHEAD = 5
#: Frames before: four of differences, the window's beginning, and the sample before that.
MFCC_BEFORE = 6


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
    if "codes" in options.tasks and not config.model.num_codes:
        raise UserError(
            "probe.tasks asks for codes, and the latents are not quantised: set model.num_codes, "
            "or take codes out of probe.tasks"
        )
    if "codes" in options.tasks and not {"z", "random z"} & {*options.features}:
        raise UserError("codes are of z: add z to probe.features, or take codes out of probe.tasks")
    if options.tasks and config.model.padding == "valid":
        raise UserError(
            "model.padding is valid, which gives fewer latents than there are labels: probe with "
            "causal or same padding, or set probe.tasks to ()"
        )


def ask_all(config: Config, data: AudioData) -> list[Question]:
    """Return the questions of all tasks.

    Raises:
        UserError: these data cannot feed one of them.
    """
    return [question for task in config.probe.tasks for question in TASKS[task](config, data)]


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
    can fill the memory. An answer is recorded as soon as it is found; those that take longest, of
    networks trained on labels, come first and are kept, so that a stop loses little.
    """
    begin, questions = time.perf_counter(), ask_all(config, data)
    for question in questions:
        question.record(workdir / "probes")
    embed = make_embed(config, model, variables)
    parts = [part for question in questions for part in question.parts]
    to_map = [first_minutes(data.test, 5.0)] if "speakers" in config.probe.tasks else []
    scores: list[Score] = []
    with kept_until_done(workdir, step) as folder_of:
        asked = Asked(config, folder_of, model, variables)
        for names in passes((*(["c"] if to_map else []), *config.probe.features)):
            # The same utterances in each pass: then batches have the same shapes, compiled once.
            raise_if_stopped()
            made = {} if names[0] in TRAINED else embed(names, [*parts, *to_map])
            for part in to_map if "c" in names else []:
                points, speaker, speakers = map_speakers(part, made["c"])
                path = workdir / "probes" / "speaker_map.npz"
                write_latest(path, step, features=points, speaker=speaker, names=speakers)
            for question in questions:
                raise_if_stopped()
                found = [
                    score._replace(seed=config.seed, step=step)
                    for name in names
                    if name in config.probe.features
                    for score in question.answer(
                        asked, Feature(name, made.get(name, {}), frame_samples(name, model))
                    )
                ]
                write_scores(workdir, found)
                scores += found
            del made
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

    >>> passes(("c", "mfcc", "random c", "z", "supervised"))
    [('supervised',), ('c', 'z'), ('mfcc',), ('random c',)]
    """
    kinds = {"c": "trained", "z": "trained", "random c": "untrained", "random z": "untrained"}
    kinds |= {"mfcc": "mfcc", "mfcc context": "mfcc"}
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(features):
        found.setdefault(kinds.get(name, name), []).append(name)
    return sorted(map(tuple, found.values()), key=lambda names: names[0] not in TRAINED)


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
            frames = embed_utterances(
                mfcc, waveforms, stride, shape_frames=MFCC_SHAPE_FRAMES, ahead=MFCC_AHEAD,
                embed_long=lambda x: embed_pieces(
                    mfcc, x, stride, before=MFCC_BEFORE, ahead=MFCC_AHEAD
                ),
            )  # fmt: skip
            found = dict(zip(utterances, frames, strict=True))
            made: dict[str, dict[str, Any]] = {"mfcc": found}
            if "mfcc context" in names:
                around = (with_neighbours(frames, NEIGHBOURS) for frames in found.values())
                made["mfcc context"] = dict(zip(found, around, strict=True))
            return made
        is_random = names[0].startswith("random")
        own = model.init(jax.random.key(config.seed + 1), {"x": window}) if is_random else variables
        kinds = "".join(kind for kind in "zc" if any(name[-1] == kind for name in names))
        weights = jax.device_put(jax.device_get(own))  # once, and both networks' alike
        function = functools.partial(side_by_side, kinds, weights)
        _, ahead = model.module.encoder.frames_around
        long = make_embed_long(model, weights, kinds)
        frames = embed_utterances(function, waveforms, stride, ahead=ahead, embed_long=long)
        found = dict(zip(utterances, frames, strict=True))
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
