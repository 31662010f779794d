"""What the probe tasks of audio share: frames of utterances, and labelled utterances."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cpc.data import Recordings, select
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData, Phones

#: Features that are networks trained on the labels, which answer by themselves.
TRAINED = {"supervised": "trained on", "tuned": "fine-tuned to"}


class Frames(NamedTuple):
    """A feature of utterances: the `values` of audio's feature sets."""

    by_utterance: Mapping[str, Any]
    """Utterance -> (frames, width); empty for the networks that answer by themselves."""
    stride: int
    """Samples from frame to frame."""


def labelled(recordings: Recordings, phones: Phones) -> Recordings:
    """Return the utterances of which phones are known."""
    known = [i for i, name in enumerate(recordings.names) if name in phones.labels]
    return select(recordings, known)


def labelled_parts(
    data: AudioData, name: str, which: tuple[str, ...] = ("training", "test")
) -> tuple[Recordings, ...]:
    """Return the training and test utterances, or one of them, that a labelled set is of.

    Raises:
        UserError: there is none.
    """
    recordings, found = {"training": data.train, "test": data.test}, []
    for kind in which:
        found.append(labelled(recordings[kind], data.phones[name]))
        if not len(found[-1]):
            raise UserError(
                f"no {kind} utterance has labels in {name}: do its utterance ids belong to these "
                "recordings?"
            )
    return tuple(found)


def labelled_sets(data: AudioData, task: str) -> list[tuple[str, Phones]]:
    """Return the names of the labelled sets, and their phones.

    Raises:
        UserError: there is none for the task.
    """
    if not data.phones:
        raise UserError(
            f"there are no phone labels for a probe of {task}: set data.phones to an alignment "
            f"file, or take {task} out of probe.tasks"
        )
    return list(data.phones.items())


def check_trained(config: Config, part: Recordings, name: str) -> None:
    """Check that the networks trained on labels have an utterance more to stop by."""
    for feature in TRAINED:
        if feature in config.probe.features and len(part) < 2:
            raise UserError(
                f"{name} has one labelled training utterance, but the {feature} network needs "
                f"another to stop by: take {feature} out of probe.features, or label more"
            )
