"""The task "abx": do features tell phones apart by distance alone, without any fit?"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cpc.data import SAMPLE_RATE_HZ, Recordings, align, make_items, select, write_items
from cpc.evaluate import abx_score, cut_tokens, make_cells, read_rows
from cpc.results import Score
from cpc.types import Item, UserError
from experiments.audio.data import Phones, num_labels


class AbxQuestion(NamedTuple):
    """Tokens of phones in their contexts."""

    task: str
    data: str
    parts: tuple[Recordings, ...]
    items: list[Item]
    is_across: tuple[bool, ...]
    """Within a speaker, and across where there are two."""


METHODS = {False: "within speaker", True: "across speakers"}


def abx_question(name: str, test: Recordings, phones: Phones) -> AbxQuestion:
    """Return what is asked of one labelled set, whose test utterances are given.

    Raises:
        UserError: no labels are of these recordings or their length, or nothing can be compared.
    """
    if not len(test):
        raise UserError(
            f"no test utterance has labels in {name}: do its utterance ids belong to these "
            "recordings?"
        )
    labels = {
        utterance: align(phones.labels[utterance], num_labels(length), utterance)
        for utterance, length in zip(test.names, test.lengths, strict=True)
    }
    speakers = dict(zip(test.names, test.speakers, strict=True))
    return _asked(name, (test,), list(make_items(labels, phones.names, speakers)))


def item_question(name: str, items: Sequence[Item], parts: Sequence[Recordings]) -> AbxQuestion:
    """Return what an item file asks of all recordings that it names, for nothing is fitted.

    Raises:
        UserError: it names recordings that are not there, or nothing can be compared.
    """
    wanted = {item.file for item in items}
    absent = sorted(wanted.difference(*(part.names for part in parts)))
    if absent:
        raise UserError(
            f"{len(absent):,} of the {len(wanted):,} recordings that {name} names are not among "
            f"these, such as {', '.join(absent[:3])}: give the folder that they lie in, or leave "
            "their items out"
        )
    named = [
        select(part, [i for i, own in enumerate(part.names) if own in wanted]) for part in parts
    ]
    return _asked(name, tuple(named), list(items))


def _asked(name: str, parts: tuple[Recordings, ...], items: list[Item]) -> AbxQuestion:
    if not any(True for _ in make_cells(items, [True] * len(items))):
        raise UserError(
            f"no speaker of {name} has two phones between the same two others, one of them twice: "
            "label more test utterances, or list more items, or take abx out of probe.tasks"
        )
    some = any(True for _ in make_cells(items, [True] * len(items), across=True))
    return AbxQuestion("abx", name, parts, items, (False, True) if some else (False,))


def record_items(folder: pathlib.Path, question: AbxQuestion) -> None:
    """Write the item file, for ZeroSpeech's own tools, and say what cannot be asked."""
    write_items(folder / file_of(question), question.items)
    if len(question.is_across) < 2:
        speakers = sorted({item.speaker for item in question.items})
        print(
            f"{question.data} has no ABX across speakers: no phone in its context is of two of its "
            f"speakers ({', '.join(speakers)})"
        )


def file_of(question: AbxQuestion) -> str:
    """Return the name of the item file with a question's tokens."""
    return f"{question.data.removesuffix('.item')}.item"


def abx_scores(
    question: AbxQuestion,
    feature: str,
    features: Mapping[str, Any],
    stride: int,
    lose_last_frame: bool = False,
) -> list[Score]:
    """Return the ABX errors of one feature, given by utterance.

    None of networks that were trained on labels, which have no features. `stride` is in samples,
    from frame to frame; `lose_last_frame` as of `cut_tokens`.
    """
    if not features:
        return []
    frames = {name: read_rows(features[name]) for part in question.parts for name in part.names}
    seconds = stride / SAMPLE_RATE_HZ
    tokens = cut_tokens(
        question.items, frames, seconds, lose_last_frame=lose_last_frame, source=file_of(question)
    )
    exists = [len(token) > 0 for token in tokens]
    scores = [
        abx_score(
            question.items,
            tokens,
            list(make_cells(question.items, exists, across=across)),
            data=question.data,
            features=feature,
            method=METHODS[across],
        )
        for across in question.is_across
    ]
    lost = ", last frame lost" if lose_last_frame else ""
    return [score._replace(setting=f"{score.setting}{lost}") for score in scores]
