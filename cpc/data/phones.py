"""Phone labels: the paper's alignment text, fitted to frames, and item files of ZeroSpeech."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from cpc.data.walk import read_named
from cpc.files import write_text
from cpc.types import Item, UserError

#: The label of a frame that has none.
UNLABELLED = -1
#: A probe has an output for each number up to the largest.
MAX_LABEL = 65_535
#: Labels that a recording may have too many, and frames at its end that may have none.
MOST_EXTRA, MOST_MISSING = 3, 10
HEADER = "#file onset offset #phone prev-phone next-phone speaker"
#: What aligners call silence: no phone, no context of one, and nothing to recognise.
SILENCES = frozenset({"pau", "sil", "SIL", "sp", "spn", "SPN", "h#", "#", "_", "<eps>"})
LABEL_SECONDS = 0.01


def read_alignments(path: str | Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Lines `utterance-id label label ...`, one label each 10 ms: the paper's format.

    Labels are integers, as in the authors' file, or names; names are numbered in sorted order. Ids
    hold no white space.

    Returns:
        utterance id -> int32 labels, one a frame; and the names of the labels by number.

    Raises:
        UserError: names file and line of an utterance without labels, one that comes twice, or a
            number that is negative, also among names, or more than `MAX_LABEL`.
    """
    text = read_named(path, "the phone labels")
    words: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, *labels = line.split()
        if not labels:
            raise UserError(
                f"{path}, line {number}: {name} has no labels, one each 10 ms is wanted"
            )
        if name in words:
            raise UserError(f"{path}, line {number}: {name} has labels on an earlier line already")
        words[name], lines[name] = labels, number
    if not words:
        raise UserError(f"{path} holds no phone labels: lines `utterance-id label ...` are wanted")
    return _numbered(words, lines, path)


def _numbered(
    words: dict[str, list[str]], lines: dict[str, int], path: str | Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    distinct = set().union(*words.values())
    is_numbers = all(word.lstrip("-").isdecimal() for word in distinct)
    if is_numbers:
        wrong = {w for w in distinct if "-" in w or len(w) > 9 or int(w) > MAX_LABEL}
    else:  # -1 for a frame without a label would be a phone
        wrong = {w for w in distinct if w.startswith("-") and w[1:].isdecimal()}
    for name, labels in words.items():
        if found := wrong.intersection(labels):
            why = f"numbers count from 0 to at most {MAX_LABEL:,}"
            if not is_numbers:
                why = "beside names: name what is unknown, as silence is named"
            raise UserError(f"{path}, line {lines[name]}: {min(found)[:20]} is no label, {why}")
    if is_numbers:
        numbers = {word: int(word) for word in distinct}
        names = tuple(str(number) for number in range(max(numbers.values()) + 1))
    else:
        names = tuple(sorted(distinct))
        numbers = {word: number for number, word in enumerate(names)}
    return {n: np.asarray([numbers[w] for w in ws], np.int32) for n, ws in words.items()}, names


def align(
    labels: Int[np.ndarray, " labels"], num_frames: int, name: str
) -> Int[np.ndarray, " frames"]:
    """One label a frame, int32; frames after the last label are `UNLABELLED`.

    Aligners stop a little before the end of a recording, and models without padding give a frame or
    two less: up to `MOST_EXTRA` labels are cut, up to `MOST_MISSING` frames stay unlabelled. (The
    labels of the packaged voices are 0.6 to 1.6 frames short.)

    Raises:
        UserError: the lengths differ by more, so labels and recording do not belong together.

    >>> align(np.array([5, 5, 7]), 4, "a")
    array([ 5,  5,  7, -1], dtype=int32)
    """
    extra = len(labels) - num_frames
    if extra > MOST_EXTRA or -extra > MOST_MISSING:
        raise UserError(
            f"{name} has {len(labels)} labels but {num_frames} frames of 10 ms: "
            "the labels do not belong to this recording"
        )
    frames = np.full(num_frames, UNLABELLED, np.int32)
    frames[: len(labels)] = labels[:num_frames]
    return frames


def read_items(path: str | Path) -> list[Item]:
    """Return the tokens that an item file of ZeroSpeech lists, in its order.

    The first line is a heading, `#file onset offset #phone prev-phone next-phone speaker`; times
    are in seconds, and blank lines are passed over.
    """
    lines, items = read_named(path, "the item file").splitlines(), []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or (not items and line.startswith("#")):
            continue
        if len(fields) != len(HEADER.split()):
            raise UserError(
                f"{path}, line {number}: {len(fields)} fields, where {HEADER} are "
                f"{len(HEADER.split())}"
            )
        try:
            onset, offset = float(fields[1]), float(fields[2])
        except ValueError:
            raise UserError(
                f"{path}, line {number}: {fields[1]} and {fields[2]} are to be an onset and an "
                "offset in seconds"
            ) from None
        if not 0 <= onset < offset < float("inf"):
            raise UserError(
                f"{path}, line {number}: from {onset:g} s to {offset:g} s is no stretch of sound"
            )
        items.append(Item(fields[0], onset, offset, *fields[3:]))
    if not items:
        raise UserError(f"{path} lists no items: lines `{HEADER}` are wanted after the first")
    return items


def write_items(path: str | Path, items: Iterable[Item]) -> None:
    """Write an item file, as `read_items` and ZeroSpeech's tools read it.

    White space parts the fields: that of a speaker's name becomes "_".
    """
    lines = [HEADER]
    for item in items:
        if len(item.file.split()) != 1:
            raise UserError(
                f"an item file cannot name the recording {item.file!r}, for white space parts its "
                "fields: rename it"
            )
        item = item._replace(speaker="_".join(item.speaker.split()))
        lines.append(" ".join(x if isinstance(x, str) else f"{x:.4f}" for x in item))
    write_text(path, "\n".join(lines) + "\n")


def make_items(
    labels: Mapping[str, Int[np.ndarray, " _"]],
    names: Sequence[str],
    speakers: Mapping[str, str],
    *,
    triphones: bool = True,
) -> Iterator[Item]:
    """Yield the tokens of phone labels, one each 10 ms: runs of one label between two others.

    Phones beside silence (`SILENCES`), beside frames without label (-1), or at the ends are left
    out. Two of the same phone in a row are one.

    Args:
        labels: of each utterance, by its name.
        names: of the phones, by number.
        speakers: of each utterance, by its name.
        triphones: whether a token spans the phones before and after it, too, as in Libri-light.

    >>> speaker, labels = {"u": "ann"}, np.array([0, 1, 1, 2, 0, 0])
    >>> [tuple(item) for item in make_items({"u": labels}, ["a", "b", "c"], speaker)]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('u', 0.0, 0.04, 'b', 'a', 'c', 'ann'), ('u', 0.01, 0.06, 'c', 'b', 'a', 'ann')]
    """
    for utterance, own in labels.items():
        changes = np.flatnonzero(np.diff(own)) + 1
        bounds = np.concatenate([[0], changes, [len(own)]])
        runs = own[bounds[:-1]] if len(own) else own
        phones = ["" if label < 0 else names[int(label)] for label in runs]
        for i in range(1, len(phones) - 1):
            three = phones[i - 1 : i + 2]
            if "" in three or not SILENCES.isdisjoint(three):
                continue
            first, last = (bounds[i - 1], bounds[i + 2]) if triphones else bounds[i : i + 2]
            yield Item(
                utterance,
                round(float(first) * LABEL_SECONDS, 6),
                round(float(last) * LABEL_SECONDS, 6),
                phones[i],
                phones[i - 1],
                phones[i + 1],
                speakers[utterance],
            )
