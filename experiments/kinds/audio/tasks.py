"""What the probe tasks of audio share: frames of utterances, and labelled utterances."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cpc.data import Recordings, align, select
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData, Phones, num_labels

#: Features that are networks trained on the labels, which answer by themselves.
TRAINED = {"supervised": "trained on", "tuned": "fine-tuned to"}


class Frames(NamedTuple):
    """A feature of utterances: the `values` of audio's feature sets."""

    by_utterance: Mapping[str, Any]
    """Utterance -> (frames, width); empty for the networks that answer by themselves."""
    stride: int
    """Samples from frame to frame."""


def labelled_sets(
    data: AudioData, task: str, which: tuple[str, ...] = ("training", "test")
) -> Iterator[tuple[str, Phones, tuple[Recordings, ...]]]:
    """Yield each labelled set: its name, phones, and the utterances that these are of."""
    if not data.phones:
        raise UserError(
            f"there are no phone labels for a probe of {task}: set data.phones to an alignment "
            f"file, or take {task} out of probe.tasks"
        )
    recordings = {"training": data.train, "test": data.test}
    for name, phones in data.phones.items():
        parts = tuple(
            select(recordings[kind], [i for i, own in enumerate(recordings[kind].names)
                                      if own in phones.labels])
            for kind in which
        )  # fmt: skip
        for kind, part in zip(which, parts, strict=True):
            if not len(part):
                raise UserError(
                    f"no {kind} utterance has labels in {name}: do its utterance ids belong to "
                    "these recordings?"
                )
        yield name, phones, parts


def aligned(part: Recordings, phones: Phones) -> list[np.ndarray]:
    """Return the labels of utterances, one every 10 ms."""
    return [
        align(phones.labels[utterance], num_labels(length), utterance)
        for utterance, length in zip(part.names, part.lengths, strict=True)
    ]


def check_trained(config: Config, part: Recordings, name: str) -> None:
    """Check that the networks trained on labels have an utterance more to stop by."""
    for feature in TRAINED:
        if feature in config.probe.features and len(part) < 2:
            raise UserError(
                f"{name} has one labelled training utterance, but the {feature} network needs "
                f"another to stop by: take {feature} out of probe.features, or label more"
            )
