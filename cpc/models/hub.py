"""Access to the Hugging Face hub, which needs the package huggingface_hub."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpc.types import UserError

#: Name of a repository, such as team/voices.
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
#: Files of an exported model, in a repository with the model or with its run.
MODEL_FILES = ["config.json", "model.safetensors", "exported/config.json", "exported/model.*"]


@contextlib.contextmanager
def connect() -> Iterator[Any]:
    """Yield the API of the hub, and convert its errors to UserError."""
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        from huggingface_hub import errors  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("the hub needs huggingface_hub: pip install 'cpc-jax[hub]'") from None
    try:
        yield huggingface_hub.HfApi()
    except (
        errors.HfHubHTTPError, errors.LocalTokenNotFoundError, errors.LocalEntryNotFoundError
    ) as error:  # fmt: skip
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the hub does not answer ({reason}): check owner/name, and run hf auth login"
        ) from error
    except errors.HFValidationError as error:
        raise UserError(f"{error}: name the repository owner/name") from error


def download_model(name: str) -> Path:
    """Download the exported model in a repository to the hub's cache, and return its folder."""
    with connect() as api:
        return Path(api.snapshot_download(name, allow_patterns=MODEL_FILES))
