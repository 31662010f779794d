"""Every key of configs of kind series."""

from typing import Any

from configs.defaults import (
    EVERY,
    INPUT,
    LOSS,
    MOST_LAYERS,
    MOST_OFFSETS,
    NEGATIVES,
    OPTIM,
    PRECISION,
    RUN,
    WIDEST,
)
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("series", "of data", words=("series",)),
    **RUN,
    "data": {
        "source": Key(
            "ar1",
            "files, or made up: channels that each follow an AR(1) process of its own",
            words=("files", "ar1"),
        ),
        "path": Key("", "files: one, or a folder of them, at any depth", is_path=True),
        "channels": Key(
            1, "numbers a step; files that have another number are skipped", low=1, high=WIDEST
        ),
        "rate_hz": Key(0.0, "steps a second, for the times of features; 0: unknown", low=0),
        "standardize": Key(
            True, "whether each channel of a file is brought to mean 0 and standard deviation 1"
        ),
        "step_label": Key("", "column (csv, parquet) or array (npz) with a label for each step"),
        "file_label": Key(
            "none",
            "folder: the name of the folder that a file lies in; table: by file_labels",
            words=("none", "folder", "table"),
        ),
        "file_labels": Key("", "table: csv of name (without ending), label", is_path=True),
        "test_fraction": Key(0.15, "of files; of a single file its last part", above=0, below=1),
        "window_steps": Key(128, "of a training sequence", low=1, high=2**26),
        "correlation": Key(0.9, "ar1: of a step with the next", above=-1, below=1),
        "num_files": Key(4000, "ar1: sequences of window_steps", low=2, high=10**7),
        **with_defaults(INPUT, batch_size=32),
    },
    "model": {
        "kernels": Key((1,), "steps that each layer of the encoder sees", low=1, high=WIDEST),
        "strides": Key((1,), "steps between its outputs", low=1, high=WIDEST),
        "width": Key(64, "of z", low=1, high=WIDEST),
        "norm": Key(
            "none", "of the encoder", words=("none", "layer", "channel", "batch", "group")
        ),
        "padding": Key("causal", "of the encoder", words=("causal", "same", "valid")),
        "context": Key("gru", "the network of c", words=("gru", "lstm", "conv", "transformer")),
        "context_width": Key(64, "of c", low=1, high=WIDEST),
        "context_layers": Key(1, "of the context network", low=1, high=MOST_LAYERS),
        "num_offsets": Key(8, "latents ahead that are predicted", low=1, high=MOST_OFFSETS),
        **PRECISION,
    },
    "loss": LOSS,
    "negatives": NEGATIVES,
    "optim": OPTIM,
    "evaluate": {
        "num_windows": Key(
            256, "held-out windows for the bound; 0: no evaluation", low=0, high=2**30
        ),
    },
    "probe": {
        "tasks": Key(
            ("steps",), "which labels are read off the features", words=("steps", "files")
        ),
        "features": Key(
            ("c", "z", "raw", "random c"),
            "of the run, the numbers themselves, and of an untrained network",
            words=("c", "z", "raw", "random c", "random z"),
        ),
        "hidden_width": Key(
            0, "of a probe with one hidden layer beside the linear one; 0: linear alone",
            low=0, high=WIDEST,
        ),
        "num_epochs": Key(3, "of the fit, over all training frames", low=1, high=10**6),
        "every": EVERY,
    },
}  # fmt: skip


def get_config() -> Any:
    """Return the defaults."""
    return make_config(KEYS)
