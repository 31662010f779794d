"""Embedding of series files of any length."""

import functools
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from cpc import models
from cpc.data.series import read_sequences
from cpc.data.walk import Skipped
from experiments.training.problem import Embedding

#: Maximum number of files in a batch.
BATCH_FILES = 64


def embed_files(
    pretrained: models.Pretrained, path: pathlib.Path, names: Sequence[str], skipped: list[Skipped]
) -> Embedding:
    """Return the features of a file, or of all files below a folder.

    A file of s steps has max(1, s // stride) frames. Its end is padded with its mirror image.
    """
    given, rate_hz = pretrained.input, pretrained.input["rate_hz"]
    sequences = read_sequences(
        path, given["shape"][1], standardize=given["standardize"], step_label=given["step_label"]
    )
    skipped += sequences.skipped
    layers = models.Layers(pretrained.module, pretrained.variables, names)
    seconds = {name: stride / rate_hz for name, stride in layers.strides.items()} if rate_hz else {}
    lengths = list(map(len, sequences.values))

    def embed() -> Iterator[tuple[str, dict[str, np.ndarray], float]]:
        groups, long = models.group_signals(lengths, layers.stride, layers.can_stream)
        for num_frames, members in groups:
            for first in range(0, len(members), BATCH_FILES):
                some = members[first : first + BATCH_FILES]
                whole = [sequences.read(number, 0, lengths[number]) for number in some]
                found = layers.embed_group(whole, num_frames)
                for number, features in zip(some, found, strict=True):
                    yield sequences.names[number], features, lengths[number] / 1e6
        for number in long:
            read = functools.partial(sequences.read, number)
            features = layers.embed_long(read, lengths[number])
            yield sequences.names[number], features, lengths[number] / 1e6

    return Embedding(embed(), sum(lengths) / 1e6, "M steps", seconds or None)
