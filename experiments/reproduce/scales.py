"""The sizes of a reproduction: from a check that all of it runs, to the paper's own."""

from typing import Any, NamedTuple

from configs import audio_librispeech
from cpc.files import flatten


class Scale(NamedTuple):
    """The size of every cell."""

    settings: dict[str, dict[str, Any]]
    """By kind."""
    hardware: str
    """With the time of all parts and one seed, as estimated from single steps."""


def length(num_steps: int, log_every: int, save_every: int) -> dict[str, int]:
    """Return the settings of a training that is evaluated at its end."""
    every = {"log_every": log_every, "eval_every": num_steps, "save_every": save_every}
    return {"num_steps": num_steps, **every}


def widths(width: int, context_width: int) -> dict[str, int]:
    """Return the settings of a network's size."""
    return {"model.width": width, "model.context_width": context_width}


#: Of sound at every scale; the paper's own replaces some of it.
AUDIO = {
    "data.batch_size": 8, "model.padding": "causal", "loss.cosine": False,
    "negatives.temperature": 1.0, "negatives.shards": 1, "probe.tasks": ("phones", "speakers"),
    "probe.features": ("c", "z", "mfcc", "random c", "random z", "supervised"),
}  # fmt: skip
#: Of sound between the smoke test and the paper's own scale.
FULL = AUDIO | {
    "optim.schedule": "cosine", "evaluate.num_windows": 128, "probe.hidden_width": 64,
    "probe.num_epochs": 3, "probe.hours": 0.5, "probe.minutes_per_speaker": 4.0,
}  # fmt: skip
#: Of images at every scale but the paper's: Adam and ridge, where the card has Muon and a softmax.
IMAGE = {
    "optim.name": "adam", "optim.learning_rate": 1e-3, "evaluate.num_images": 512,
    "probe.solver": "ridge", "probe.tasks": ("linear", "units"),
    "probe.features": ("z", "c", "random z", "pixels"), "probe.num_images": 10_000,
}  # fmt: skip
ALL_IMAGE_TASKS = {"probe.tasks": ("linear", "supervised", "units")}
#: Settings that the scale of the paper takes from the card of its audio, whatever the data.
PAPER_KEYS = (
    "num_steps", "log_every", "eval_every", "save_every", "data.batch_size", "model.width",
    "model.context_width", "model.padding", "loss.cosine", "negatives.temperature",
    "negatives.shards", "optim.learning_rate", "optim.schedule", "optim.warmup_steps",
    "evaluate.num_windows",
)  # fmt: skip
#: Smoke: as little as runs everything.
SMALLEST = length(20, log_every=10, save_every=20) | widths(16, 16) | {"optim.warmup_steps": 2}
SMALLEST_AUDIO = {
    "probe.hidden_width": 8, "probe.num_epochs": 1, "probe.hours": 0.02,
    "evaluate.num_windows": 16, "probe.minutes_per_speaker": 0.2,
}  # fmt: skip
SMALLEST_IMAGE = {
    "data.batch_size": 32, "model.context_layers": 1, "evaluate.num_images": 64,
    "probe.num_images": 2000, "probe.num_epochs": 1,
}  # fmt: skip
SMALLEST_AGENT = {
    "num_env_steps": 2560, "log_rollouts": 2, "save_rollouts": 0, "model.widths": (16, 16),
    "model.memory_width": 16, "cpc.num_offsets": 4, "evaluate.num_steps": 0,
}  # fmt: skip
SCALES = {
    "smoke": Scale(
        {
            "audio": AUDIO | SMALLEST | SMALLEST_AUDIO,
            "image": IMAGE | SMALLEST | ALL_IMAGE_TASKS | SMALLEST_IMAGE,
            "rl": SMALLEST_AGENT,
        },
        hardware="2 CPU cores, about 11 min for all parts",
    ),
    "small": Scale(
        {
            "audio": FULL
            | length(400, log_every=50, save_every=400)
            | widths(128, 256)
            | {"optim.learning_rate": 2e-3, "optim.warmup_steps": 50},
            "image": IMAGE | length(300, log_every=50, save_every=300),
            "rl": {"num_env_steps": 400_000},
        },
        hardware="2 fast CPU cores, about 2 h for all parts",
    ),
    "medium": Scale(
        {
            "audio": FULL
            | length(500, log_every=50, save_every=100)
            | widths(192, 256)
            | {"optim.learning_rate": 1e-3, "optim.warmup_steps": 100},
            "image": IMAGE | length(600, log_every=50, save_every=100) | widths(256, 256),
            "rl": {"num_env_steps": 640_000},
        },
        hardware="2 CPU cores, about 5.5 h for all parts",
    ),
    "paper": Scale(
        {
            "audio": AUDIO
            | {key: flatten(audio_librispeech.get_config())[key] for key in PAPER_KEYS},
            "image": ALL_IMAGE_TASKS,
            "rl": {"num_env_steps": 640_000},
        },
        hardware="a GPU per cell of audio, a pod per cell of images, never run",
    ),
}
