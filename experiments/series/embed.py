"""Features of files of series, of any length."""

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from cpc import models
from cpc.evaluate.embeddings import continue_mirrored, embed_utterances
from experiments.embedding import embed_batch
from experiments.problem import Embedding
from experiments.series.files import Sequences, read_sequences

#: Longer files are embedded in chunks of so many steps.
CHUNK_STEPS = 2**18
#: Files that share a batch are read together.
BATCH_FILES = 64


def embed_files(
    pretrained: models.Pretrained,
    root: pathlib.Path,
    is_context: bool,
    skipped: list[tuple[str, str]],
) -> Embedding:
    """Return the features of every series below a folder, on their way."""
    module: Any = pretrained.module
    given, rate_hz = pretrained.input, pretrained.input["rate_hz"]
    how = {name: given[name] for name in ("standardize", "step_label")}
    sequences = read_sequences(root, given["shape"][1], **how)
    skipped += sequences.skipped
    return Embedding(
        features=embed_sequences(pretrained, sequences, is_context),
        total=sum(map(len, sequences.values)) / 1e6,
        unit="M steps",
        frame_seconds=module.encoder.stride / rate_hz if rate_hz else None,
    )


def embed_sequences(
    pretrained: models.Pretrained, sequences: Sequences, is_context: bool
) -> Iterator[tuple[str, np.ndarray, float]]:
    """Yield name, features and millions of steps of each; max(1, s // stride) frames.

    What a frame sees beyond the end of its file is the file's mirror image.
    """
    module: Any = pretrained.module
    embed = jax.jit(functools.partial(embed_batch, module, is_context, pretrained.variables))
    lengths, (_, ahead) = list(map(len, sequences.values)), module.encoder.frames_around
    short = [number for number, length in enumerate(lengths) if length <= CHUNK_STEPS]
    for first in range(0, len(short), BATCH_FILES):
        members = short[first : first + BATCH_FILES]
        whole = [sequences.read(number, 0, lengths[number]) for number in members]
        found = embed_utterances(embed, whole, module.encoder.stride, ahead=ahead)
        for number, features in zip(members, found, strict=True):
            yield sequences.names[number], features, lengths[number] / 1e6
    for number, length in enumerate(lengths):
        if length > CHUNK_STEPS:
            features = embed_long(pretrained, sequences, number, is_context)
            yield sequences.names[number], features, length / 1e6


def embed_long(
    pretrained: models.Pretrained, sequences: Sequences, number: int, is_context: bool
) -> np.ndarray:
    """Return z or c of a file that is read a chunk at a time."""
    module: Any = pretrained.module
    size, stride = len(sequences.values[number]), module.encoder.stride

    def read(start: int, stop: int) -> np.ndarray:
        return continue_mirrored(sequences.read(number, start, min(stop, size)), stop - start)

    frames = max(1, size // stride)
    chunk = CHUNK_STEPS // stride
    parts = models.stream_latents(module, pretrained.variables, read, frames, chunk)
    if is_context:
        parts = models.stream_contexts(module, pretrained.variables, parts)
    return np.concatenate([np.asarray(part[0], np.float32) for part in parts])[:frames]
