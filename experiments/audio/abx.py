"""The task "abx": do features tell phones apart by distance alone, without any fit?"""

import functools
import pathlib

from cpc.data import SAMPLE_RATE_HZ, Recordings, align, make_items, write_items
from cpc.evaluate import abx_score, cut_tokens, make_cells, read_rows
from cpc.results import Score
from cpc.types import Item, UserError
from experiments.audio.data import AudioData, Phones, num_labels
from experiments.audio.question import (
    Asked,
    Feature,
    Question,
    labelled_parts,
    labelled_sets,
)
from experiments.command.config import Config

METHODS = {False: "within speaker", True: "across speakers"}


def abx_questions(config: Config, data: AudioData) -> list[Question]:
    """Return what is asked of the test utterances of every labelled set."""
    return [
        abx_question(name, labelled_parts(data, name, ("test",))[0], phones)
        for name, phones in labelled_sets(data, "abx")
    ]


def abx_question(name: str, test: Recordings, phones: Phones) -> Question:
    """Return what is asked of one labelled set, whose test utterances are given.

    Raises:
        UserError: labels are not of these recordings' length, or nothing can be compared.
    """
    labels = {
        utterance: align(phones.labels[utterance], num_labels(length), utterance)
        for utterance, length in zip(test.names, test.lengths, strict=True)
    }
    speakers = dict(zip(test.names, test.speakers, strict=True))
    items = list(make_items(labels, phones.names, speakers))
    if not any(True for _ in make_cells(items, [True] * len(items))):
        raise UserError(
            f"no speaker of {name} has two phones between the same two others, one of them twice, "
            "in the test utterances: label more of them, or take abx out of probe.tasks"
        )
    some = any(True for _ in make_cells(items, [True] * len(items), across=True))

    def answer(asked: Asked, feature: Feature) -> list[Score]:
        return abx_scores(name, items, feature, (False, True) if some else (False,))

    record = functools.partial(record_items, name, items, some)
    return Question("abx", name, (test,), answer, record)


def record_items(name: str, items: list[Item], some_across: bool, folder: pathlib.Path) -> None:
    """Write the item file, for ZeroSpeech's own tools, and say what cannot be asked."""
    write_items(folder / f"{name}.item", items)
    if not some_across:
        speakers = sorted({item.speaker for item in items})
        print(
            f"{name} has no ABX across speakers: no phone in its context is of two of its "
            f"labelled test speakers ({', '.join(speakers)})"
        )


def abx_scores(
    name: str, items: list[Item], feature: Feature, is_across: tuple[bool, ...]
) -> list[Score]:
    """Return the ABX errors of one feature, within and across speakers.

    None of networks that were trained on labels, which have no features.
    """
    if not feature.frames:
        return []
    frames = {item.file: read_rows(feature.frames[item.file]) for item in items}
    tokens = cut_tokens(items, frames, feature.stride / SAMPLE_RATE_HZ, source=f"{name}.item")
    exists = [len(token) > 0 for token in tokens]
    return [
        abx_score(
            items,
            tokens,
            list(make_cells(items, exists, across=across)),
            data=name,
            features=feature.name,
            method=METHODS[across],
        )
        for across in is_across
    ]
