"""The sizes of a reproduction: from a check that all of it runs, to the paper's own."""

from typing import Any, NamedTuple

from configs import audio_librispeech
from cpc.files import flatten


class Scale(NamedTuple):
    """How much is made of every cell."""

    settings: dict[str, dict[str, Any]]
    """By kind."""
    hardware: str
    seconds_per_step: dict[str, float]
    """By kind, of agents a step of one environment; empty where none was measured."""
    seconds_per_cell: float | int
    """Start, compilation, probes and report."""
    seconds_of_table_1: float | int
    """More, for all probes of the first cell and the networks trained on labels."""


#: Of sound at every scale; the paper's own replaces some of it.
AUDIO = {
    "data.batch_size": 8,
    "model.padding": "causal",
    "loss.cosine": False,
    "negatives.temperature": 1.0,
    "negatives.shards": 1,
    "probe.tasks": ("phones", "speakers"),
    "probe.features": ("c", "z", "mfcc", "random c", "random z", "supervised"),
}
#: Of sound between the smoke test and the paper's own scale.
FULL = AUDIO | {
    "model.context_width": 256,
    "optim.schedule": "cosine",
    "evaluate.num_windows": 128,
    "probe.hidden_width": 64,
    "probe.num_epochs": 3,
    "probe.hours": 0.5,
    "probe.minutes_per_speaker": 4.0,
}
#: Of images at every scale but the paper's: Adam and ridge, where the card has Muon and a softmax.
IMAGE = {
    "optim.name": "adam",
    "optim.learning_rate": 1e-3,
    "evaluate.num_images": 512,
    "probe.solver": "ridge",
}
#: What the scale of the paper takes from the card of its audio, whatever the data.
PAPER_KEYS = (
    "num_steps", "log_every", "eval_every", "save_every", "data.batch_size", "model.width",
    "model.context_width", "model.padding", "loss.cosine", "negatives.temperature",
    "negatives.shards", "optim.learning_rate", "optim.schedule", "optim.warmup_steps",
    "evaluate.num_windows",
)  # fmt: skip
SCALES = {
    "smoke": Scale(
        settings={
            "audio": AUDIO
            | {
                "num_steps": 20,
                "log_every": 10,
                "eval_every": 20,
                "save_every": 20,
                "model.width": 16,
                "model.context_width": 16,
                "optim.warmup_steps": 2,
                "evaluate.num_windows": 16,
                "probe.hidden_width": 8,
                "probe.num_epochs": 1,
                "probe.hours": 0.02,
                "probe.minutes_per_speaker": 0.2,
            },
            "image": IMAGE
            | {
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
            "rl": {
                "num_env_steps": 2560,
                "log_rollouts": 2,
                "save_rollouts": 0,
                "model.widths": (16, 16),
                "model.memory_width": 16,
                "cpc.num_offsets": 4,
                "evaluate.num_steps": 0,
            },
        },
        hardware="2 CPU cores",
        seconds_per_step={"audio": 0.05, "image": 0.05, "rl": 5e-5},
        seconds_per_cell=30,
        seconds_of_table_1=75,
    ),
    "small": Scale(
        settings={
            "audio": FULL
            | {
                "num_steps": 400,
                "log_every": 50,
                "eval_every": 400,
                "save_every": 400,
                "model.width": 128,
                "optim.learning_rate": 2e-3,
                "optim.warmup_steps": 50,
            },
            "image": IMAGE
            | {
                "num_steps": 300,
                "log_every": 50,
                "eval_every": 300,
                "save_every": 300,
                "probe.tasks": ("linear", "units"),
                "probe.features": ("z", "c", "random z", "pixels"),
                "probe.num_images": 10_000,
            },
            "rl": {"num_env_steps": 400_000},
        },
        hardware="2 fast CPU cores",
        seconds_per_step={"audio": 0.2, "image": 0.5, "rl": 5e-5},
        seconds_per_cell=50,
        # Probes 280 s, and three networks trained on labels: one took 33 times the steps, the two
        # others are guessed alike.
        seconds_of_table_1=280 + 3 * 33 * 400 * 0.08,
    ),
    # The cells of "open" took what this says. A step of images is a guess, four times that of small
    # for twice the width: two cells at a time, beside other work, took 8 and 14 s for one.
    "medium": Scale(
        settings={
            "audio": FULL
            | {
                "num_steps": 500,
                "log_every": 50,
                "eval_every": 500,
                "save_every": 100,
                "model.width": 192,
                "optim.learning_rate": 1e-3,
                "optim.warmup_steps": 100,
            },
            "image": IMAGE
            | {
                "num_steps": 600,
                "log_every": 50,
                "eval_every": 600,
                "save_every": 100,
                "model.width": 256,
                "model.context_width": 256,
                "probe.tasks": ("linear", "units"),
                "probe.features": ("z", "c", "random z", "pixels"),
                "probe.num_images": 10_000,
            },
            "rl": {"num_env_steps": 640_000},
        },
        hardware="2 CPU cores",
        seconds_per_step={"audio": 0.45, "image": 4 * 0.5, "rl": 5e-5},
        seconds_per_cell=70,
        seconds_of_table_1=280 + 3 * 33 * 500 * 0.2,
    ),
    "paper": Scale(
        settings={
            "audio": AUDIO
            | {key: flatten(audio_librispeech.get_config())[key] for key in PAPER_KEYS},
            "image": {"probe.tasks": ("linear", "supervised", "units")},
            "rl": {"num_env_steps": 640_000},
        },
        hardware="a GPU a cell of audio, a pod a cell of images",
        seconds_per_step={},
        seconds_per_cell=0,
        seconds_of_table_1=0,
    ),
}
