"""The task "abx": do features tell phones apart by distance alone, without any fit?"""

import pathlib
from collections.abc import Sequence

from cpc.data import SAMPLE_RATE_HZ, Recordings, make_items, select, write_items
from cpc.evaluate import abx_score, cut_tokens, make_cells, read_rows
from cpc.results import Score
from cpc.types import Item, UserError
from experiments.command.config import Config
from experiments.kinds.audio.data import AudioData, Phones, aligned, labelled_sets
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask

METHODS = {False: "within speaker", True: "across speakers"}


def abx_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the tasks of every labelled set's test utterances, and those of item files."""
    lose = config.probe.lose_last_frame
    labelled = [] if data.items and not data.phones else labelled_sets(data, "abx", ("test",))
    by_phones = [abx_task(name, test, phones, lose) for name, phones, (test,) in labelled]
    parts = data.train, data.test
    return by_phones + [item_task(name, own, parts, lose) for name, own in data.items.items()]


def abx_task(
    name: str, test: Recordings, phones: Phones, lose_last_frame: bool = False
) -> ProbeTask:
    """Return the task of one labelled set, whose test utterances are given."""
    labels = dict(zip(test.names, aligned(test, phones), strict=True))
    speakers = dict(zip(test.names, test.speakers, strict=True))
    items = list(make_items(labels, phones.names, speakers))
    return ask(name, (test,), items, lose_last_frame)


def item_task(
    name: str, items: Sequence[Item], parts: Sequence[Recordings], lose_last_frame: bool
) -> ProbeTask:
    """Return the task of an item file, on all recordings that it names, for nothing is fitted."""
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
) -> ProbeTask:
    """Return the task of items; also across speakers, if there are two of a phone."""
    if not any(True for _ in make_cells(items, [True] * len(items))):
        raise UserError(
            f"no speaker of {name} has two phones between the same two others, one of them twice: "
            "label more test utterances, or list more items, or take abx out of probe.tasks"
        )
    some = any(True for _ in make_cells(items, [True] * len(items), across=True))

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        across = (False, True) if some else (False,)
        return abx_scores(name, items, features, across, lose_last_frame)

    def record(folder: pathlib.Path) -> None:  # the item file is for ZeroSpeech's own tools
        write_items(folder / file_of(name), items)
        if not some:
            speakers = ", ".join(sorted({item.speaker for item in items}))
            print(
                f"{name} has no ABX across speakers: no phone in its context is of two of its "
                f"speakers ({speakers})"
            )

    return ProbeTask("abx", answer, parts=parts, record=record)


def file_of(name: str) -> str:
    """Return the name of the item file with the tokens of a set.

    >>> file_of("festvox_ru"), file_of("dev-clean.item")
    ('festvox_ru.item', 'dev-clean.item')
    """
    return f"{name.removesuffix('.item')}.item"


def abx_scores(
    name: str,
    items: list[Item],
    features: FeatureSet,
    is_across: tuple[bool, ...],
    lose_last_frame: bool,
) -> list[Score]:
    """Return the ABX errors of a feature; none of a network that was trained on labels."""
    by_utterance, stride = features.values
    if not by_utterance:
        return []
    frames = {item.file: read_rows(by_utterance[item.file]) for item in items}
    seconds, source = stride / SAMPLE_RATE_HZ, file_of(name)
    tokens = cut_tokens(items, frames, seconds, lose_last_frame=lose_last_frame, source=source)
    exists = [len(token) > 0 for token in tokens]
    scores = []
    for across in is_across:
        cells = list(make_cells(items, exists, across=across))
        if not cells:
            print(
                f"{name}: no ABX of {features.name} {METHODS[across]}: too few tokens have frames"
            )
            continue
        score = abx_score(
            items, tokens, cells, data=name, features=features.name, method=METHODS[across]
        )
        scores.append(score)
    lost = ", last frame lost" if lose_last_frame else ""
    return [score._replace(setting=f"{score.setting}{lost}") for score in scores]
