"""The cells of each table and figure, their sizes, and the choices that the paper leaves open.

A cell is an ordinary run. Its own settings override those of the user, which override the scale's.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from configs import (
    audio_librispeech,
    audio_synthetic,
    audio_voices_paper,
    image_fashion_mnist,
    image_imagenet,
    rl_hidden_ball,
    text_bookcorpus,
    text_sentences,
)
from configs.audio import KEYS
from configs.keys import make_config
from cpc.data import SAMPLE_RATE_HZ
from cpc.files import flatten, plain
from cpc.types import UserError
from experiments.command.config import Config, parse_settings, with_settings
from experiments.command.names import command_line


class Scale(NamedTuple):
    """The settings of every cell by kind, and the default number of seeds per cell."""

    settings: dict[str, dict[str, Any]]
    hours: dict[str, float]
    """Hours per cell on two CPU cores by kind, estimated from single steps, or {} if unknown."""
    seeds: int = 1


def length(num_steps: int, log_every: int, save_every: int) -> dict[str, int]:
    """Return the settings of a training run that is evaluated only at its end."""
    every = {"log_every": log_every, "eval_every": num_steps, "save_every": save_every}
    return {"num_steps": num_steps, **every}


def widths(width: int) -> dict[str, int]:
    """Return settings that give a network and its context the same width."""
    return {"model.width": width, "model.context_width": width}


def recipe_of(module: Any) -> dict[str, Any]:
    """Return a config module's audio training settings that apply to any data."""
    known = flatten(module.get_config())
    names = (
        "num_steps", "log_every", "eval_every", "save_every", "data.batch_size", "model.width",
        "model.context_width", "model.padding", "loss.cosine", "negatives.temperature",
        "negatives.shards", "optim.learning_rate", "optim.schedule", "optim.warmup_steps",
        "evaluate.num_windows",
    )  # fmt: skip
    return {name: known[name] for name in names}


#: Audio probes at every scale.
AUDIO_PROBES = {
    "probe.tasks": ("phones", "speakers"), "probe.hidden_width": 64,
    "probe.features": ("c", "z", "mfcc", "random c", "random z", "supervised"),
}  # fmt: skip
#: Image settings below the paper's scale, with Adam and ridge instead of Muon and softmax.
IMAGE_SETTINGS = {
    "optim.name": "adam", "optim.learning_rate": 1e-3, "evaluate.num_images": 512,
    "probe.solver": "ridge", "probe.tasks": ("linear", "units"),
    "probe.features": ("z", "c", "random z", "pixels"), "probe.num_images": 10_000,
}  # fmt: skip
#: Text probes at every scale: sentence ratings as in Table 5, and the next sentence.
TEXT_PROBES = {
    "probe.tasks": ("movies", "products", "next"),
    "probe.features": ("z", "c", "random z", "random c", "bag"),
}  # fmt: skip
#: Text settings at small and medium, with the paper's widths. Each fit then takes minutes.
TEXT_SETTINGS = TEXT_PROBES | widths(2400) | {
    "model.embedding_width": 620, "probe.max_sentences": 2000, "probe.num_folds": 5,
}  # fmt: skip
ALL_IMAGE_TASKS = {"probe.tasks": ("linear", "supervised", "units")}
#: Smallest sizes at which the smoke test runs everything, with the paper's dot products.
SMALLEST = length(20, log_every=10, save_every=20) | widths(16) | {"optim.warmup_steps": 2}
SMALLEST_AUDIO = {
    "data.batch_size": 8, "model.padding": "causal", "loss.cosine": False,
    "negatives.temperature": 1.0, "negatives.shards": 1, "evaluate.num_windows": 16,
    "probe.hidden_width": 8, "probe.num_epochs": 1, "probe.hours": 0.02,
    "probe.minutes_per_speaker": 0.2,
}  # fmt: skip
SMALLEST_IMAGE = {
    "data.batch_size": 32, "model.context_layers": 1, "evaluate.num_images": 64,
    "probe.num_images": 2000, "probe.num_epochs": 1,
}  # fmt: skip
SMALLEST_TEXT = {
    "data.source": "grammar", "data.num_documents": 100, "data.batch_size": 8,
    "model.embedding_width": 16, "evaluate.num_runs": 16, "probe.num_folds": 3,
    "probe.max_sentences": 200,
}  # fmt: skip
SMALLEST_AGENT = {
    "num_env_steps": 2560, "log_rollouts": 2, "save_rollouts": 0, "model.widths": (16, 16),
    "model.memory_width": 16, "cpc.num_offsets": 4, "evaluate.num_steps": 0,
}  # fmt: skip
#: Audio settings at small and medium, which learn phones in half an hour.
LEARNED = AUDIO_PROBES | recipe_of(audio_voices_paper)
SCALES = {
    "smoke": Scale(
        {
            "audio": AUDIO_PROBES | SMALLEST | SMALLEST_AUDIO,
            "image": IMAGE_SETTINGS | SMALLEST | ALL_IMAGE_TASKS | SMALLEST_IMAGE,
            "rl": SMALLEST_AGENT,
            "text": TEXT_PROBES | SMALLEST | SMALLEST_TEXT,
        },
        hours={"audio": 0.01, "image": 0.01, "rl": 0.01, "text": 0.01},
    ),
    "small": Scale(
        {
            "audio": LEARNED,
            "image": IMAGE_SETTINGS | length(300, log_every=50, save_every=300),
            "rl": {"num_env_steps": 400_000},
            "text": TEXT_SETTINGS | length(300, log_every=50, save_every=100),
        },
        hours={"audio": 0.5, "image": 0.1, "rl": 0.1, "text": 0.8},
        seeds=3,
    ),
    "medium": Scale(
        {
            "audio": LEARNED,
            "image": IMAGE_SETTINGS | length(600, log_every=50, save_every=100) | widths(256),
            "rl": {"num_env_steps": 640_000},
            "text": TEXT_SETTINGS | length(1000, log_every=50, save_every=100),
        },
        hours={"audio": 0.5, "image": 0.6, "rl": 0.15, "text": 1.7},
        seeds=3,
    ),
    "paper": Scale(
        {
            "audio": AUDIO_PROBES | recipe_of(audio_librispeech),
            "image": ALL_IMAGE_TASKS,
            "rl": {"num_env_steps": 640_000},
            "text": TEXT_PROBES,
        },
        hours={},
    ),
}
#: Settings of all cells, by kind.
UserSettings: TypeAlias = Mapping[str, Mapping[str, Any]]


class Open(NamedTuple):
    """A choice that the paper leaves open, and the cell and settings that vary it, if any."""

    what: str
    here: str
    """Our choice in words, or "" if the config keys suffice to describe it."""
    cell: str = ""
    settings: Mapping[str, Any] = {}
    kind: str = "audio"


#: Cell names in tables and figures. Recorded reproductions use them as directory names.
MIXED, SAME, CURRENT = "mixed", "same", "current"
MIXED_EXCL, SAME_EXCL = "mixed-excl", "same-excl"
STEPS = {2: "steps-2", 4: "steps-4", 8: "steps-8", 12: MIXED, 16: "steps-16"}
FAR_OFFSETS = "steps-20"
IMAGE, IMAGE_GRU = "image", "image-gru"
TEXT = "text"
#: The cells of agents without and with CPC, by variant of the hidden ball.
AGENTS = {
    "seen_again": ("ball-seen-alone", "ball-seen"),
    "always_visible": ("ball-visible-alone", "ball-visible"),
    "never_seen": ("ball-gone-alone", "ball-gone"),
}

#: Settings of the Table 2 cells. The first cell also has the probes of Table 1.
TABLE_2: dict[str, dict[str, Any]] = {
    MIXED: {},
    **{name: {"model.num_offsets": k} for k, name in STEPS.items() if name != MIXED},
    SAME: {"data.one_speaker": True},
    MIXED_EXCL: {"negatives.rule": "excluding_sequence"},
    SAME_EXCL: {"data.one_speaker": True, "negatives.rule": "excluding_sequence"},
    CURRENT: {"negatives.rule": "own_sequence"},
}
#: Probes of the other Table 2 cells.
PHONES = {"probe.tasks": ("phones",), "probe.features": ("c",), "probe.hidden_width": 0}
FIGURE_3 = {FAR_OFFSETS: {"model.num_offsets": 20, "probe.tasks": ()}}
IMAGES: dict[str, dict[str, Any]] = {IMAGE: {}, IMAGE_GRU: {"model.context": "gru"}}
FIGURE_6: dict[str, dict[str, Any]] = {
    name: {"environment.name": f"hidden_ball:{variant}", **own}
    for variant, names in AGENTS.items()
    for name, own in zip(names, ({"cpc.weight": 0.0}, {}), strict=True)
}
#: Settings of all cells except the cells in `OPEN`, and the kind of data of all cells but audio's.
OWN = {**TABLE_2, **FIGURE_3, **IMAGES, **FIGURE_6, TEXT: {}}
KIND_OF = {**dict.fromkeys(IMAGES, "image"), **dict.fromkeys(FIGURE_6, "rl"), TEXT: "text"}

#: The choices that the paper leaves open, with a cell if a key varies the choice.
OPEN = (
    Open("number of negatives, and whether all latents are candidates",
         "all latents of a device's windows", "open-sampled", {"negatives.num_sampled": 128}),
    Open("whose windows a device contrasts", "", "open-groups", {"negatives.shards": 1}),
    Open("whether latents near the positive can be negatives",
         "the positive never, its neighbors yes", "open-window", {"negatives.window": 2}),
    Open("scaling of the scores, normalization of z and c", "", "open-cosine",
         {"loss.cosine": True, "negatives.temperature": 0.05}),
    Open("sum or mean over offsets and time", "sum over offsets of means over anchors"),
    Open("norm of the audio encoder", "", "open-norm", {"model.norm": "channel"}),
    Open("padding of the audio encoder", "", "open-padding", {"model.padding": "same"}),
    Open("initialization", "of flax: LeCun's normal numbers, orthogonal in the recurrence"),
    Open("state of the GRU at the start of a window", "zero"),
    Open("schedule of the learning rate", "", "open-schedule", {"optim.schedule": "cosine"}),
    Open("weight decay", "", "open-decay", {"optim.weight_decay": 0.01}),
    Open("clipping of gradients", "", "open-clip", {"optim.clip_norm": 1.0}),
    Open("dropout", "none"),
    Open("windows of the training; those of the probe", "drawn at any sample; whole utterances",
         "open-short", {"data.window_samples": 10240}),
    Open("optimizer and regularization of the probe",
         "linear: to convergence; hidden layer: Adam; weight decay by validation utterances"),
    Open("size of the images' context network", "", IMAGE_GRU, IMAGES[IMAGE_GRU], "image"),
    Open("length of the images' training", "as the config says", kind="image"),
)  # fmt: skip

#: Audio config by data name.
DATA = {
    "synthetic": audio_synthetic, "voices": audio_voices_paper, "librispeech": audio_librispeech,
}  # fmt: skip
DEFAULT_DATA = {"smoke": "synthetic", "small": "voices", "medium": "voices", "paper": "librispeech"}
#: Parts of a reproduction (tables and figures), and the cells that each part needs.
PARTS = {
    "table 1": (MIXED,),
    "table 2": tuple(TABLE_2),
    "table 3": tuple(IMAGES),
    "table 4": (IMAGE,),
    "table 5": (TEXT,),
    "figure 2": (MIXED,),
    "figure 3": (FAR_OFFSETS,),
    "figure 5": (IMAGE,),
    "figure 6": tuple(FIGURE_6),
    "open": (MIXED, IMAGE, *(one.cell for one in OPEN if one.cell)),
    "bound": tuple(TABLE_2),
}


class Kind(NamedTuple):
    """A kind of data: its cells' base configs, and descriptions of its steps."""

    base: Any
    """The config module below the paper's scale, or None if the audio data select it."""
    paper: Any
    """The config module at the paper's scale, whose docstring describes the data."""
    describe: Callable[[Config], str]
    """Describes a step and the network."""
    in_paper: str
    """The same description for the paper."""


KINDS = {
    "audio": Kind(
        None, audio_librispeech,
        lambda c: f"{c.data.batch_size} windows of {c.data.window_samples / SAMPLE_RATE_HZ:.2f} s, "
        f"{c.model.width} channels, context {c.model.context_width}",
        "about 300,000 steps of 64 windows of 1.28 s, 512 and 256",
    ),
    "image": Kind(
        image_fashion_mnist, image_imagenet,
        lambda c: f"{c.data.batch_size} images of {c.augment.crop or c.data.size} pixels, "
        f"encoder {c.model.encoder}",
        "512 images of 256 pixels, ResNet-v2-101",
    ),
    "rl": Kind(
        rl_hidden_ball, rl_hidden_ball,
        lambda c: f"{c.environment.num} environments, unrolls of {c.policy.unroll}, "
        f"a {c.model.memory} of {c.model.memory_width}",
        "1e9 frames of levels of DeepMind Lab, unrolls of 100, an LSTM",
    ),
    "text": Kind(
        text_sentences, text_bookcorpus,
        lambda c: f"{c.data.batch_size} runs of {c.data.run_sentences} sentences, "
        f"z of {c.model.width}, context {c.model.context_width}",
        "512 runs of the BookCorpus, 2,400 and 2,400",
    ),
}  # fmt: skip

#: Values for a cell of `OPEN` if the base already has its settings. Other keys use their default.
FALLBACK = {"negatives.shards": 4, "optim.schedule": "constant"}


class Planned(NamedTuple):
    """A run of a reproduction, with its config file, settings and resulting config."""

    name: str
    kind: str
    file: pathlib.Path
    settings: dict[str, Any]
    config: Config


def base_config(kind: str, scale: str, data: str) -> tuple[Config, pathlib.Path]:
    """Return the base config of a kind and its file."""
    known = KINDS[kind]
    module: Any = known.paper if scale == "paper" else known.base
    module = DATA[data] if kind == "audio" else module
    return module.get_config(), pathlib.Path(module.__file__)


def read_user(settings: Mapping[str, Sequence[str]], scale: str, data: str) -> UserSettings:
    """Parse the user's "key=value" settings of each kind."""
    own = {"seed", *(key for cell in OWN.values() for key in cell if key != "probe.tasks")}
    user = {}
    for kind in KINDS:
        texts = settings.get(kind, ())
        if wrong := [text for text in texts if "=" not in text]:
            raise UserError(f"a setting has no value (got {wrong[0]!r}): pass key=value")
        names = (text.removeprefix("--").removeprefix("config.") for text in texts)
        config = base_config(kind, scale, data)[0]
        user[kind] = parse_settings(config, [f"--config.{name}" for name in names])
        for key, value in user[kind].items():
            if key in own:
                raise UserError(f"{key} differs between the cells (got {value!r}): remove the key")
            if key in ("model.horizon", "loss.align_to") and value:
                raise UserError(f"{key} changes the cells' offsets (got {value!r}): remove the key")
    return user


def cells_of(parts: Sequence[str], scale: str) -> list[str]:
    """Return the distinct cells that the parts need, without open choices in the smoke test."""
    names = [name for part in parts if (part, scale) != ("open", "smoke") for name in PARTS[part]]
    return list(dict.fromkeys(names))


def with_shared(kind: str, scale: str, data: str, user: UserSettings) -> Config:
    """Return a kind's base config with the settings of the scale and the user."""
    settings = {**SCALES[scale].settings[kind], **user.get(kind, {})}
    return with_settings(base_config(kind, scale, data)[0], settings)


def open_settings(one: Open, base: Config) -> dict[str, Any]:
    """Return an open choice's settings, or fallback values if the base already has these."""
    settings, known = dict(one.settings), flatten(base)
    if all(known.get(key) == value for key, value in settings.items()):
        others = {**flatten(make_config(KEYS)), **FALLBACK}
        settings = {key: others[key] for key in settings}
    if "data.window_samples" in settings:
        settings["data.window_samples"] = min(10240, known["data.window_samples"] // 2)
    return settings


def plan_cells(
    names: Sequence[str], scale: str, data: str, user: UserSettings, num_seeds: int
) -> list[Planned]:
    """Plan a run for each cell and seed.

    >>> planned = plan_cells(["mixed", "steps-2"], "smoke", "synthetic", {}, 2)
    >>> [cell.name for cell in planned]
    ['mixed,seed=0', 'mixed,seed=1', 'steps-2,seed=0', 'steps-2,seed=1']
    """
    planned = []
    for name in names:
        kind = KIND_OF.get(name, "audio")
        file, shared = base_config(kind, scale, data)[1], with_shared(kind, scale, data, user)
        own = OWN.get(name)
        if own is None:
            own = open_settings(next(one for one in OPEN if one.cell == name), shared)
        if kind == "audio" and name not in (MIXED, FAR_OFFSETS):
            own = {**PHONES, **own}
        common = {**SCALES[scale].settings[kind], **user.get(kind, {}), **own}
        for seed in range(shared.seed, shared.seed + num_seeds):
            settings = {**common, "seed": seed}
            config = with_settings(shared, settings)
            planned.append(Planned(f"{name},seed={seed}", kind, file, settings, config))
    return planned


def describe_open(scale: str, data: str, user: UserSettings) -> list[dict[str, str]]:
    """Return a table row per choice that the paper leaves open, with our value and variation."""
    rows = []
    for one in OPEN:
        base = with_shared(one.kind, scale, data, user)
        own, known = open_settings(one, base) if one.cell else {}, flatten(base)
        keys = ", ".join(f"{key}={known[key]}" for key in own)
        rows.append({
            "kind": one.kind, "what": one.what, "cell": one.cell,
            "choice": "; ".join(filter(None, (one.here, keys))),
            "change": ", ".join(f"{k}={v}" for k, v in own.items()) or "no cell varies it",
        })  # fmt: skip
    return rows


def describe_cells(planned: Sequence[Planned], scale: str, num_jobs: int) -> dict[str, str]:
    """Describe the size of the cells in one sentence, and their hardware and time in another."""
    parts, hours = [], SCALES[scale].hours
    for kind, known in KINDS.items():
        cells = [cell for cell in planned if cell.kind == kind]
        if cells:
            c, card = cells[0].config, cells[0].file.stem
            num_steps = c.get("num_steps") or c.num_env_steps
            parts.append(
                f"Runs of {kind} ({card.removeprefix(f'{kind}_')}): {len(cells)}, each of "
                f"{num_steps:,} steps of {known.describe(c)} (the paper: {known.in_paper})"
            )
    total = sum(hours.get(cell.kind, 0.0) for cell in planned)
    hardware = f"2 CPU cores, about {total:.1f} h" if hours else "accelerators, never run"
    shared = f", shared by {num_jobs} cells at a time" if num_jobs > 1 else ""
    return {"size": "; ".join(parts), "hardware": f"Hardware: {hardware}{shared}"}


def plan_parts(
    parts: Sequence[str], names: Sequence[str], scale: str, data: str | None = None,
    settings: Mapping[str, Sequence[str]] = {}, seeds: int | None = None, jobs: int = 1,
) -> tuple[list[Planned], dict[str, Any]]:  # fmt: skip
    """Plan the runs of the named cells; return them, and the plan as recorded in its folder."""
    data, seeds = data or DEFAULT_DATA[scale], seeds or SCALES[scale].seeds
    user = read_user(settings, scale, data)
    planned = plan_cells(names, scale, data, user, seeds)
    return planned, {
        "scale": scale, "data": data, "user": user, "parts": parts, "seeds": seeds, "jobs": jobs,
        **describe_cells(planned, scale, jobs), "open": describe_open(scale, data, user),
    }  # fmt: skip


def merge_plans(
    plan: dict[str, Any], planned: Sequence[Planned], folder: pathlib.Path, recorded: Any
) -> dict[str, Any]:
    """Merge a plan with the plan recorded in a folder, or raise UserError if they differ."""
    own = {cell.name: cell.settings for cell in planned}
    wanted = {"reproduction": plan, "cells": own, "command": command_line()}
    if recorded is None:
        return wanted
    previous = recorded.get("reproduction")
    if previous is None:
        raise UserError(f"{folder} contains a sweep: choose another --workdir")
    found = [
        f"{key} was {previous.get(key)!r} and is {plan[key]!r}"
        for key in ("scale", "data", "user")
        if previous.get(key) != plain(plan[key])
    ]
    for cell in planned if not found else ():
        theirs = recorded["cells"].get(cell.name, cell.settings)
        if training_keys(theirs) != training_keys(cell.settings):
            found.append(f"{cell.name} has other settings")
    if found:
        raise UserError(
            f"{folder} contains another reproduction ({'; '.join(found)}): set another --workdir"
        )
    parts = [part for part in PARTS if part in {*previous["parts"], *plan["parts"]}]
    seeds, scale = max(previous["seeds"], plan["seeds"]), plan["scale"]
    whole = plan_cells(cells_of(parts, scale), scale, plan["data"], plan["user"], seeds)
    all_cells = {**recorded["cells"], **own}
    asked = [cell for cell in whole if cell.name in all_cells]  # another part may have fewer seeds
    whole = {**plan, "parts": parts, "seeds": seeds, **describe_cells(asked, scale, plan["jobs"])}
    return {**wanted, "reproduction": whole, "cells": all_cells}


def training_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect training, without the settings of probes."""
    return {key: plain(value) for key, value in settings.items() if not key.startswith("probe.")}
