"""What a reproduction runs: the cells of each table and figure, their sizes, and what is open.

A cell is an ordinary run of `experiments.audio` or `experiments.image`; its settings are those of
the scale, then the user's, then its own.
"""

import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from configs import (
    audio_librispeech,
    audio_synthetic,
    audio_voices,
    image_fashion_mnist,
    image_imagenet,
)
from cpc.types import UserError
from experiments.launch import Config, flatten
from experiments.sweep.cells import Cell, find_key, parse_value, with_settings


class Open(NamedTuple):
    """Something that the paper leaves open."""

    what: str
    here: str
    """The choice in words; "" where the keys say it."""
    cell: str = ""
    """The cell that varies it."""
    settings: Mapping[str, Any] = types.MappingProxyType({})
    why_not: str = "no key varies it"
    """Said where there is no cell."""


class Scale(NamedTuple):
    """How much is made of every cell."""

    audio: dict[str, Any]
    image: dict[str, Any]
    hardware: str
    seconds_per_step: dict[str, float]
    """By kind; empty where none was measured."""
    seconds_per_cell: float | int
    """Start, compilation, probes and report."""
    seconds_of_table_1: float | int
    """More, for all probes of the first cell and the networks trained on labels."""


#: Settings of Table 2's cells. The probes of Table 1 are fitted on the first.
TABLE_2: dict[str, dict[str, Any]] = {
    "mixed": {},
    **{f"steps-{k}": {"model.num_offsets": k} for k in (2, 4, 8, 16)},
    "same": {"data.one_speaker": True},
    "mixed-excl": {"negatives.rule": "excluding_sequence"},
    "same-excl": {"data.one_speaker": True, "negatives.rule": "excluding_sequence"},
    "current": {"negatives.rule": "own_sequence"},
}
#: What a cell of Table 2 is probed for, but for the first.
PHONES = {"probe.tasks": ("phones",), "probe.features": ("c",), "probe.hidden_width": 0}
FIGURE_3 = {"steps-20": {"model.num_offsets": 20, "probe.tasks": ()}}
IMAGES: dict[str, dict[str, Any]] = {"image": {}, "image-gru": {"model.context": "gru"}}

#: Section 1 of the paper and what it does not say, with a cell for each choice that a key makes.
OPEN = (
    Open(
        "number of negatives, and whether all latents are candidates",
        "all latents of a device's windows",
        "open-sampled",
        {"negatives.num_sampled": 128},
    ),
    Open("whose windows a device contrasts", "", "open-groups", {"negatives.groups": 1}),
    Open(
        "whether latents near the positive can be negatives",
        "the positive never, its neighbours yes",
        "open-window",
        {"negatives.window": 2},
    ),
    Open(
        "scaling of the scores, normalisation of z and c",
        "none",
        "open-cosine",
        {"loss.cosine": True, "negatives.temperature": 0.1},
    ),
    Open("sum or mean over offsets and time", "sum over offsets of means over anchors"),
    Open("norm of the audio encoder", "", "open-norm", {"model.norm": "channel"}),
    Open("padding of the audio encoder", "", "open-padding", {"model.padding": "same"}),
    Open("initialisation", "of flax: LeCun's normal numbers, orthogonal in the recurrence"),
    Open("state of the GRU at the start of a window", "zero"),
    Open("schedule of the learning rate", "", "open-schedule", {"optim.schedule": "cosine"}),
    Open("weight decay", "", "open-decay", {"optim.weight_decay": 0.01}),
    Open("clipping of gradients", "", "open-clip", {"optim.clip_norm": 1.0}),
    Open("dropout", "none"),
    Open(
        "windows of the training; those of the probe",
        "drawn at any sample; whole utterances",
        "open-short",
        {"data.window_samples": 10240},
    ),
    Open(
        "optimizer and regularisation of the probe",
        "Adam; weight decay by validation utterances",
        "open-probe",
        {"probe.num_epochs": 10},
    ),
    Open("size of the pictures' context network", "", "image-gru", IMAGES["image-gru"]),
    Open(
        "length of the pictures' training",
        "as the config says",
        why_not="num_steps does; there is no cell of it",
    ),
)

SCALES = {
    "smoke": Scale(
        audio={
            "num_steps": 20,
            "log_every": 10,
            "eval_every": 20,
            "save_every": 20,
            "data.batch_size": 8,
            "model.width": 16,
            "model.context_width": 16,
            "optim.warmup_steps": 2,
            "evaluate.num_windows": 16,
            "probe.features": ("c", "z", "mfcc", "random c", "random z", "supervised"),
            "probe.hidden_width": 8,
            "probe.num_epochs": 1,
            "probe.hours": 0.02,
            "probe.minutes_per_speaker": 0.2,
        },
        image={
            "num_steps": 20,
            "log_every": 10,
            "eval_every": 20,
            "save_every": 20,
            "data.batch_size": 32,
            "model.width": 16,
            "model.context_width": 16,
            "model.context_layers": 1,
            "optim.warmup_steps": 2,
            "evaluate.num_images": 64,
            "probe.tasks": ("linear", "supervised", "units"),
            "probe.features": ("z", "c", "random z", "pixels"),
            "probe.num_images": 2000,
            "probe.num_epochs": 1,
        },
        hardware="2 CPU cores",
        seconds_per_step={"audio": 0.05, "image": 0.05},
        seconds_per_cell=30,
        seconds_of_table_1=55,
    ),
    "small": Scale(
        audio={
            "num_steps": 400,
            "log_every": 50,
            "eval_every": 400,
            "save_every": 400,
            "data.batch_size": 8,
            "model.width": 128,
            "model.context_width": 256,
            "negatives.groups": 1,
            "optim.learning_rate": 2e-3,
            "optim.schedule": "cosine",
            "optim.warmup_steps": 50,
            "evaluate.num_windows": 128,
            "probe.features": ("c", "z", "mfcc", "random c", "random z", "supervised"),
            "probe.hidden_width": 64,
            "probe.num_epochs": 3,
            "probe.hours": 0.5,
            "probe.minutes_per_speaker": 4.0,
        },
        image={
            "num_steps": 300,
            "log_every": 50,
            "eval_every": 300,
            "save_every": 300,
            "probe.tasks": ("linear", "units"),
            "probe.features": ("z", "c", "random z", "pixels"),
            "probe.num_images": 10_000,
        },
        hardware="2 fast CPU cores",
        seconds_per_step={"audio": 0.2, "image": 0.5},
        seconds_per_cell=50,
        seconds_of_table_1=440,
    ),
    "paper": Scale(
        audio={
            "num_steps": 300_000,
            "log_every": 200,
            "eval_every": 5_000,
            "save_every": 5_000,
            "data.batch_size": 64,
            "model.width": 512,
            "model.context_width": 256,
            "negatives.groups": 8,
            "optim.learning_rate": 2e-4,
            "optim.schedule": "constant",
            "optim.warmup_steps": 1_000,
            "evaluate.num_windows": 256,
            "probe.features": ("c", "z", "mfcc", "random c", "random z", "supervised"),
        },
        image={"probe.tasks": ("linear", "supervised", "units")},
        hardware="a GPU a cell of audio, a pod a cell of pictures",
        seconds_per_step={},
        seconds_per_cell=0,
        seconds_of_table_1=0,
    ),
}
DATA = {"synthetic": audio_synthetic, "voices": audio_voices, "librispeech": audio_librispeech}
#: The data of a scale, if none are named.
DEFAULT_DATA = {"smoke": "synthetic", "small": "voices", "paper": "librispeech"}
#: What may be asked for, and the cells that it needs.
PARTS = {
    "table 1": ("mixed",),
    "table 2": tuple(TABLE_2),
    "table 3": tuple(IMAGES),
    "table 4": ("image",),
    "figure 2": ("mixed",),
    "figure 3": ("steps-20",),
    "figure 5": ("image",),
    "open": ("mixed", "image", *(one.cell for one in OPEN if one.cell)),
    "bound": (*TABLE_2, "open-groups"),
}


class Planned(NamedTuple):
    """A run to be made."""

    name: str
    kind: str
    """audio or image: the experiment's module."""
    config: pathlib.Path
    """The config's file."""
    settings: dict[str, Any]


def base_config(kind: str, scale: str, data: str) -> tuple[Config, pathlib.Path]:
    """The config that cells of a kind start from, and its file."""
    pictures = image_imagenet if scale == "paper" else image_fashion_mnist
    module: Any = DATA[data] if kind == "audio" else pictures
    return module.get_config(), pathlib.Path(module.__file__)


def parse_settings(config: Config, texts: Sequence[str]) -> dict[str, Any]:
    """What the user sets: "key=value" each, but nothing that the cells differ in."""
    own = {key for cell in (*TABLE_2.values(), *IMAGES.values()) for key in cell} | {"seed"}
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"{text!r} sets nothing: write key=value, such as data.path=LibriSpeech"
            )
        key = find_key(config, key.strip())
        if key in own:
            raise UserError(f"{key} is what the cells differ in: leave it out")
        settings[key] = parse_value(config, key, value)
    return settings


def open_settings(one: Open, base: Config) -> dict[str, Any]:
    """A cell's settings; what would change nothing is turned into what does."""
    settings, known = dict(one.settings), dict(flatten(base))
    if all(known.get(key) == value for key, value in settings.items()):
        other = {"negatives.groups": 4, "optim.schedule": "constant"}
        settings = {key: other.get(key, value) for key, value in settings.items()}
    if "data.window_samples" in settings:
        settings["data.window_samples"] = min(10240, known["data.window_samples"] // 2)
    return settings


def cells_of(parts: Sequence[str], scale: str) -> list[str]:
    """Names of the cells that some parts need, each once; the smoke test varies nothing open."""
    names = [name for part in parts if (part, scale) != ("open", "smoke") for name in PARTS[part]]
    return list(dict.fromkeys(names))


def kind_of(name: str) -> str:
    """The experiment of a cell."""
    return "image" if name in IMAGES else "audio"


def plan_cells(
    names: Sequence[str],
    scale: str,
    data: str,
    user: Mapping[str, Mapping[str, Any]],
    num_seeds: int,
) -> list[Planned]:
    """Each cell with each seed; `user` are settings by kind.

    >>> planned = plan_cells(["mixed", "steps-2"], "smoke", "synthetic", {}, 2)
    >>> [cell.name for cell in planned]
    ['mixed,seed=0', 'mixed,seed=1', 'steps-2,seed=0', 'steps-2,seed=1']
    """
    planned = []
    for name in names:
        kind = kind_of(name)
        config, path = base_config(kind, scale, data)
        shared = {**getattr(SCALES[scale], kind), **user.get(kind, {})}
        base = with_settings(config, shared)
        own = {**TABLE_2, **FIGURE_3, **IMAGES}.get(name)
        if own is None:
            own = open_settings(next(one for one in OPEN if one.cell == name), base)
        if kind == "audio" and name not in ("mixed", *FIGURE_3):
            own = {**PHONES, **own}
        for seed in range(config.seed, config.seed + num_seeds):
            settings = {**shared, **own, "seed": seed}
            planned.append(Planned(f"{name},seed={seed}", kind, path, settings))
    return planned


def config_of(cell: Planned, scale: str, data: str) -> Config:
    """The whole config of a cell."""
    return with_settings(base_config(cell.kind, scale, data)[0], cell.settings)


def as_cells(planned: Sequence[Planned]) -> list[Cell]:
    """As a sweep has them."""
    return [Cell(cell.name, cell.settings) for cell in planned]


def describe_open(
    scale: str, data: str, user: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, str]]:
    """What is open, what is chosen here, and how a cell varies it; for the page."""
    rows = []
    for one in OPEN:
        kind = kind_of(one.cell) if one.cell else "audio"
        shared = {**getattr(SCALES[scale], kind), **user.get(kind, {})}
        base = with_settings(base_config(kind, scale, data)[0], shared)
        known = dict(flatten(base))
        own = open_settings(one, base) if one.cell else {}
        keys = ", ".join(f"{key}={known[key]}" for key in own)
        rows.append(
            {
                "what": one.what,
                "choice": "; ".join(part for part in (one.here, keys) if part),
                "cell": one.cell,
                "change": ", ".join(f"{key}={value}" for key, value in own.items()) or one.why_not,
            }
        )
    return rows


def describe_size(planned: Sequence[Planned], scale: str, data: str) -> str:
    """What the cells are, in a sentence."""
    parts = []
    for kind in ("audio", "image"):
        cells = [cell for cell in planned if cell.kind == kind]
        if not cells:
            continue
        c = config_of(cells[0], scale, data)
        if kind == "audio":
            what = f"{c.data.batch_size} windows of {c.data.window_samples / 16000:.2f} s"
            net = f"{c.model.width} channels, context {c.model.context_width}"
            paper = "the paper: about 300,000 steps of 64 windows of 1.28 s, 512 and 256"
            source = data
        else:
            what = f"{c.data.batch_size} pictures of {c.augment.crop} pixels"
            net = f"encoder {c.model.encoder}"
            paper = "the paper: 512 pictures of 256 pixels, ResNet-v2-101"
            source = c.data.source
        parts.append(
            f"Runs of {kind} ({source}): {len(cells)}, each of {c.num_steps:,} steps of {what}, "
            f"{net} ({paper})"
        )
    return "; ".join(parts)


def estimate_seconds(planned: Sequence[Planned], scale: str) -> float | None:
    """Time of all cells one after the other; None where none was ever measured."""
    size = SCALES[scale]
    if not size.seconds_per_step:
        return None
    seconds = 0.0
    for cell in planned:
        steps = cell.settings["num_steps"]
        seconds += size.seconds_per_cell + size.seconds_per_step[cell.kind] * steps
        seconds += size.seconds_of_table_1 * cell.name.startswith("mixed,")
    return seconds
