"""Files below a folder, and features of those that can be read."""

import contextlib
import pathlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from cpc import models
from cpc.data.walk import DOCUMENTS, find_data, list_endings, printable
from cpc.types import UserError


def list_files(
    root: pathlib.Path,
    suffixes: Collection[str],
    skipped: list[tuple[str, str]],
    others: Collection[str] = DOCUMENTS,
) -> dict[str, pathlib.Path]:
    """Return the files below `root`, by path without ending, or with it if two would be equal.

    `root` may be one file. What is left out is added to `skipped`.
    """
    read = f"pass {list_endings(suffixes)} files"
    if root.is_file():
        if root.suffix.lower() not in suffixes:
            raise UserError(f"{root} is not a file that the model takes: {read}")
        return {root.stem: root}
    if not root.is_dir():
        raise UserError(f"{root} does not exist: pass a file or folder with --input")
    found = find_data(root, suffixes, others)
    skipped += [*found.unreadable, *found.left_out]
    below = [path.relative_to(root) for path in found.files]
    if not below:
        raise UserError(f"{root} has no file to embed at any depth: {read}")
    stems = [path.with_suffix("").as_posix() for path in below]
    count = Counter(stems)
    names = [
        stem if count[stem] == 1 else path.as_posix()
        for stem, path in zip(stems, below, strict=True)
    ]
    if len(set(names)) < len(names):  # x.wav, x.flac and x.wav.wav
        names = [path.as_posix() for path in below]
    return dict(zip(names, (root / path for path in below), strict=True))


@contextlib.contextmanager
def skip(name: str, skipped: list[tuple[str, str]]) -> Iterator[None]:
    """Add what cannot be read to a list, and why; the next file is next."""
    try:
        yield
    except (UserError, OSError) as error:
        skipped.append((printable(name), printable(str(error))))


def make_embed_long(
    model: models.Model, variables: Any, kinds: str
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return embed(waveform): features of the kinds, z and c, side by side, made in pieces.

    None if contexts see an utterance to its end, which is then embedded whole.
    """
    module = model.module
    if not isinstance(module, models.CPC) or module.is_bidirectional:
        return None
    layers = models.Layers(module, variables, tuple(kinds))

    def embed(waveform: np.ndarray) -> np.ndarray:
        made = layers.embed_long(lambda start, stop: waveform[start:stop], len(waveform))
        return np.concatenate([made[kind] for kind in kinds], axis=-1)

    return embed
