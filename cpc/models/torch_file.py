"""Checkpoints of torch as named arrays, read by torch itself without running code in them."""

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np

from cpc.types import UserError

#: Entries of checkpoints that hold a model's arrays.
STATE_DICTS = "weights", "gEncoder", "state_dict", "model_state_dict", "model"
#: Endings of such files.
SUFFIXES = ".pt", ".pth"


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the named arrays of a checkpoint as float32, and its "config", empty if it has none.

    The arrays are the content itself or its entry "weights" or "gEncoder", as CPC_audio calls
    those of its hub and of its training, or "state_dict".

    Raises:
      UserError: torch is not installed or cannot read the file as data, or it has no named arrays.
    """
    content = _load(path)
    content = content if isinstance(content, dict) else {}
    for found in (*(content.get(name) for name in STATE_DICTS), content):
        named = found.items() if isinstance(found, dict) else ()
        arrays = {
            str(name): one.detach().float().numpy() for name, one in named if hasattr(one, "detach")
        }
        if arrays:
            config = content.get("config")
            return arrays, config if isinstance(config, dict) else {}
    raise UserError(
        f"{path} has no named arrays, by itself or under {', '.join(STATE_DICTS)}: pass a "
        "checkpoint with the state dict of a model"
    )


def _load(path: Path) -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"{path} is a file of torch, which is not installed: pip install 'cpc-jax[torch]'"
        ) from error
    try:
        # A training of CPC_audio may save its options beside the arrays.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no common class for damaged and refused files
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it refers to {code[1]}" if code else type(error).__name__
        raise UserError(
            f"torch cannot read {path} as data ({reason}): fetch it again, or save the state dict "
            "of tensors alone"
        ) from error
