"""Audio features for probes: z, c, MFCC, untrained networks, and networks trained on labels.

Tasks are defined in other modules. Each utterance is embedded once for all tasks.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from cpc import evaluate
from cpc.data import SAMPLE_RATE_HZ, Recordings, read_all
from cpc.results import Score
from cpc.train import raise_if_stopped
from experiments.command.config import Config
from experiments.command.run_dir import write_latest
from experiments.kinds.audio import tasks as audio_tasks
from experiments.kinds.audio.data import TRAINED, AudioData, Frames, frame_samples, subset_minutes
from experiments.kinds.audio.layers import LAYERS, delayed
from experiments.kinds.audio.recognition import recognition_tasks
from experiments.training.checks import check_probes, reject
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask, feature_names
from experiments.training.sequences import embed_frames


def code_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task "codes", which measures the bitrate of quantized latents."""

    def answer(context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
        if features.name in ("z", "random z"):
            frames, stride = [*features.values.read(data.test.names)], features.values.stride
            words = {"data": data.name, "features": features.name}
            yield from evaluate.code_scores(frames, stride / SAMPLE_RATE_HZ, **words)

    return [ProbeTask("codes", answer, parts=(data.test,))]


#: Probe tasks by name; each raises a UserError if the data lack the labels it needs.
TASKS: dict[str, Callable[[Config, AudioData], list[ProbeTask]]] = {
    "phones": audio_tasks.phone_tasks,
    "speakers": audio_tasks.speaker_tasks,
    "files": audio_tasks.file_tasks,
    "ctc": recognition_tasks,
    "abx": audio_tasks.abx_tasks,
    "boundaries": audio_tasks.boundary_tasks,
    "codes": code_tasks,
    "units": audio_tasks.unit_tasks,
    "verification": audio_tasks.verification_tasks,
}
#: Each point of the speaker map is the mean of c over this many latents.
PIECE_LATENTS = 128
MAX_POINTS = 1500
#: Number of neighbouring frames on either side in "mfcc context", which covers 170 ms.
NEIGHBOURS = 8
#: Number of frames whose MFCC take about as long as compiling for another length.
MFCC_SHAPE_FRAMES = 400_000
#: Number of later frames that an MFCC frame depends on: 4 for differences, 1 for the window's end.
MFCC_AHEAD = 5
#: Number of earlier frames: 4 for differences, 1 for the window's start and 1 for pre-emphasis.
MFCC_BEFORE = 6


def check_options(config: Config) -> None:
    """Validate the probe keys, and their combinations with the model keys."""
    options, model = config.probe, config.model
    is_single = model.modules == 1 and len(model.directions) == 1 and not model.segment_threshold
    has_linear_maps = is_single and model.predictor == "linear"
    check_probes(config)
    reject(config,
        ("ctc" in options.tasks and not options.ctc_minutes, "probe.ctc_minutes",
         "the task ctc needs minutes of labels; set probe.ctc_minutes, e.g. to (0,) for all"),
        ("codes" in options.tasks and not config.model.num_codes, "probe.tasks model.num_codes",
         "the latents are not quantized; set model.num_codes, or remove codes from probe.tasks"),
        ("codes" in options.tasks and not {"z", "random z"} & {*options.features},
         "probe.tasks probe.features", "add z to probe.features, or remove codes from probe.tasks"),
        ("W_1 c" in options.features and not has_linear_maps,
         "probe.features model.predictor",
         "W_1 c needs a linear predictor, one module and one direction; remove W_1 c"),
    )  # fmt: skip


def probe_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the tasks in `probe.tasks`. The task "speakers" also adds the speaker map."""
    tasks = [one for task in config.probe.tasks for one in TASKS[task](config, data)]
    return [*tasks, *([speaker_map(data)] if "speakers" in config.probe.tasks else [])]


def feature_sets(context: ProbeContext, tasks: Sequence[ProbeTask]) -> Iterator[FeatureSet]:
    """Yield each feature that `tasks` use, with its frames for all of their utterances.

    Networks trained on labels come first. They take longest but are checkpointed, so that a
    stopped run loses little work.
    """
    config, model = context.config, context.model
    parts = [part for task in tasks for part in task.parts]
    for names in passes(feature_names(config, tasks)):
        # Each pass embeds the same utterances, so batch shapes repeat and are compiled once.
        raise_if_stopped()
        made = {} if names[0] in (*TRAINED, LAYERS) else embed(context, names, parts)
        for name in names:
            yield FeatureSet(name, Frames(made.pop(name, {}), frame_samples(name, model)))
        del made


def passes(features: Sequence[str]) -> list[tuple[str, ...]]:
    """Group features by the network that computes them, so that one forward pass serves a group.

    >>> passes(("c", "mfcc", "random c", "z", "supervised", "W_1 c"))
    [('supervised',), ('c', 'z', 'W_1 c'), ('mfcc',), ('random c',)]
    """
    trained, found = ("c", "z", "W_1 c"), {}
    for name in dict.fromkeys(features):
        network = "trained" if name in trained else name.split()[0]  # such as random or mfcc
        found.setdefault(network, []).append(name)
    return sorted(map(tuple, found.values()), key=lambda names: names[0] not in TRAINED)


def embed(
    context: ProbeContext, names: Sequence[str], parts: Sequence[Recordings]
) -> dict[str, dict[str, Any]]:
    """Return the frames of recordings `parts` by feature and utterance.

    `names` are the features of one network, a group from `passes`.
    """
    config, model = context.config, context.model
    utterances = {name: (part, i) for part in parts for i, name in enumerate(part.names)}
    waveforms = [read_all(*place) for place in utterances.values()]
    stride = frame_samples(names[0], model)
    if "mfcc" in names[0]:
        frames = embed_mfcc(waveforms, stride)
        near = (evaluate.with_neighbours(own, NEIGHBOURS) for own in frames)
        made = {"mfcc": frames, "mfcc context": near}
        return {name: dict(zip(utterances, made[name], strict=True)) for name in names}
    window = np.zeros((1, config.data.window_samples), np.float32)
    is_random = names[0].startswith("random")
    own = context.untrained(window) if is_random else context.variables
    kinds = "".join(kind for kind in "zc" if any(name[-1] == kind for name in names))
    frames = embed_frames(model, own, kinds, waveforms)
    z_width = jax.eval_shape(model.embed, own, window)[0].shape[-1]
    columns = {"z": slice(z_width), "c": slice(z_width if "z" in kinds else 0, None)}
    delays, made = {"z": 0, "c": config.probe.delay}, {}
    for name in names:
        kind = name[-1]
        values = (delayed(x[:, columns[kind]], delays[kind]) for x in frames)
        if name == "W_1 c":
            nearest = np.asarray(model.linear_maps(own["params"]), np.float32)[0]
            values = [c @ nearest for c in values]
        made[name] = dict(zip(utterances, values, strict=True))
    return made


def embed_mfcc(waveforms: Sequence[np.ndarray], stride: int) -> list[np.ndarray]:
    """Return each waveform's MFCC (frames, 39), computing long waveforms in pieces."""
    long = functools.partial(
        evaluate.embed_pieces, evaluate.mfcc, stride=stride, before=MFCC_BEFORE, ahead=MFCC_AHEAD
    )
    sizes = {"shape_frames": MFCC_SHAPE_FRAMES, "ahead": MFCC_AHEAD}
    return evaluate.embed_utterances(evaluate.mfcc, waveforms, stride, **sizes, embed_long=long)


def speaker_map(data: AudioData) -> ProbeTask:
    """Return a task that writes the points of the speaker map, which are means of c."""
    part = subset_minutes(data.test, 5.0)
    names = sorted(set(part.speakers))

    def write(context: ProbeContext, features: FeatureSet) -> list[Score]:
        points, speakers = [], []
        for utterance, speaker in zip(part.names, part.speakers, strict=True):
            c = features.values.by_utterance[utterance]
            for start in range(0, max(1, len(c) - PIECE_LATENTS // 2), PIECE_LATENTS):
                points.append(c[start : start + PIECE_LATENTS].mean(0))
                speakers.append(names.index(speaker))
        chosen = np.random.default_rng(0).permutation(len(points))[:MAX_POINTS]
        c, speaker = np.asarray(points, np.float32)[chosen], np.asarray(speakers)[chosen]
        path, arrays = context.workdir / "probes" / "speaker_map.npz", {"names": np.asarray(names)}
        write_latest(path, context.step, features=c, speaker=speaker, **arrays)
        return []

    return ProbeTask("speakers", write, ("c",), (part,))
