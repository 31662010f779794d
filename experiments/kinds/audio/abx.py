"""The task "abx": do features tell phones apart by distance alone, without any fit?"""

import functools
import pathlib
from collections.abc import Sequence

from cpc.data import SAMPLE_RATE_HZ, Recordings, align, make_items, select, write_items
from cpc.evaluate import abx_score, cut_tokens, make_cells, read_rows
from cpc.results import Score
from cpc.types import Item, UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData, Phones, num_labels
from experiments.kinds.audio.question import Asked, Feature, Question, labelled_parts, labelled_sets

METHODS = {False: "within speaker", True: "across speakers"}


def abx_questions(config: Config, data: AudioData) -> list[Question]:
    """Return what is asked of the test utterances of every labelled set, and by item files."""
    lose = config.probe.lose_last_frame
    labelled = [] if data.items and not data.phones else labelled_sets(data, "abx")
    by_phones = [
        abx_question(name, labelled_parts(data, name, ("test",))[0], phones, lose)
        for name, phones in labelled
    ]
    parts = data.train, data.test
    return by_phones + [item_question(name, own, parts, lose) for name, own in data.items.items()]


def abx_question(
    name: str, test: Recordings, phones: Phones, lose_last_frame: bool = False
) -> Question:
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
    return ask(name, (test,), items, lose_last_frame)


def item_question(
    name: str, items: Sequence[Item], parts: Sequence[Recordings], lose_last_frame: bool
) -> Question:
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
    return ask(name, tuple(named), list(items), lose_last_frame)


def ask(
    name: str, parts: tuple[Recordings, ...], items: list[Item], lose_last_frame: bool
) -> Question:
    """Return the question of the items; across speakers, too, where there are two of a phone."""
    if not any(True for _ in make_cells(items, [True] * len(items))):
        raise UserError(
            f"no speaker of {name} has two phones between the same two others, one of them twice: "
            "label more test utterances, or list more items, or take abx out of probe.tasks"
        )
    some = any(True for _ in make_cells(items, [True] * len(items), across=True))

    def answer(asked: Asked, feature: Feature) -> list[Score]:
        return abx_scores(
            name, items, feature, (False, True) if some else (False,), lose_last_frame
        )

    return Question("abx", name, parts, answer, functools.partial(record, name, items, some))


def record(name: str, items: list[Item], some_across: bool, folder: pathlib.Path) -> None:
    """Write the item file, for ZeroSpeech's own tools, and say what cannot be asked."""
    write_items(folder / file_of(name), items)
    if not some_across:
        speakers = sorted({item.speaker for item in items})
        print(
            f"{name} has no ABX across speakers: no phone in its context is of two of its "
            f"speakers ({', '.join(speakers)})"
        )


def file_of(name: str) -> str:
    """Return the name of the item file with the tokens of a set.

    >>> file_of("festvox_ru"), file_of("dev-clean.item")
    ('festvox_ru.item', 'dev-clean.item')
    """
    return f"{name.removesuffix('.item')}.item"


def abx_scores(
    name: str,
    items: list[Item],
    feature: Feature,
    is_across: tuple[bool, ...],
    lose_last_frame: bool,
) -> list[Score]:
    """Return the ABX errors of one feature, within and across speakers.

    None of networks that were trained on labels, which have no features. `lose_last_frame` as of
    `cut_tokens`.
    """
    if not feature.frames:
        return []
    frames = {item.file: read_rows(feature.frames[item.file]) for item in items}
    seconds, source = feature.stride / SAMPLE_RATE_HZ, file_of(name)
    tokens = cut_tokens(items, frames, seconds, lose_last_frame=lose_last_frame, source=source)
    exists = [len(token) > 0 for token in tokens]
    scores = []
    for across in is_across:
        cells = list(make_cells(items, exists, across=across))
        if not cells:
            print(f"{name}: no ABX of {feature.name} {METHODS[across]}: too few tokens have frames")
            continue
        given = {"data": name, "features": feature.name, "method": METHODS[across]}
        scores.append(abx_score(items, tokens, cells, **given))
    lost = ", last frame lost" if lose_last_frame else ""
    return [score._replace(setting=f"{score.setting}{lost}") for score in scores]
