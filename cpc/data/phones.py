"""Phone labels per frame from the paper's alignment format, and ZeroSpeech item files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from cpc.data.walk import read_named
from cpc.files import write_text
from cpc.types import Item, UserError

#: Label of frames that have no label.
UNLABELLED = -1
#: Largest label. A probe has one output for each number up to the largest label.
MAX_LABEL = 65_535
#: Maximum number of surplus labels of a recording, and of frames without a label at its end.
MAX_EXTRA, MAX_MISSING = 3, 10
HEADER = "#file onset offset #phone prev-phone next-phone speaker"
#: Names that aligners give to silence. Phones next to silence are not used as items.
SILENCES = frozenset({"pau", "sil", "SIL", "sp", "spn", "SPN", "h#", "#", "_", "<eps>"})
LABEL_SECONDS = 0.01


def read_alignments(path: str | Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read phone labels in the paper's format: lines `utterance-id label label ...`.

    There is one label every 10 ms. Labels are integers, as in the authors' file, or names. Names
    are numbered in sorted order. Ids contain no whitespace.

    Returns:
        The int32 frame labels by utterance id, and the name of each label.

    Raises:
        UserError: an utterance has no labels or occurs twice, or a label exceeds `MAX_LABEL` or is
            a negative number, even if other labels are names. The message contains the file and
            the line.
    """
    text = read_named(path, "the phone labels")
    words: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, *labels = line.split()
        if not labels:
            raise UserError(f"{path}, line {number}: {name} has no labels: give one per 10 ms")
        if name in words:
            raise UserError(f"{path}, line {number}: {name} has two lines: remove one line")
        words[name], lines[name] = labels, number
    if not words:
        raise UserError(f"{path} contains no phone labels: give lines `utterance-id label ...`")
    return _number_labels(words, lines, path)


def _number_labels(
    words: dict[str, list[str]], lines: dict[str, int], path: str | Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    distinct = set().union(*words.values())
    is_numbers = all(word.lstrip("-").isdecimal() for word in distinct)
    if is_numbers:
        wrong = {w for w in distinct if "-" in w or len(w) > 9 or int(w) > MAX_LABEL}
    else:  # -1 would become a phone, although it marks frames without a label
        wrong = {w for w in distinct if w.startswith("-") and w[1:].isdecimal()}
    for name, labels in words.items():
        if found := wrong.intersection(labels):
            fix = f"use numbers from 0 to {MAX_LABEL:,}"
            if not is_numbers:
                fix = "use a name, such as sil for silence"
            raise UserError(f"{path}, line {lines[name]}: {min(found)[:20]} is not a label: {fix}")
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
    """Return one int32 label per frame, with `UNLABELLED` frames after the last label.

    Aligners stop a little before the end of a recording, and models without padding return one or
    two frames less. Up to `MAX_EXTRA` labels are therefore dropped, and up to `MAX_MISSING` frames
    stay unlabelled. (The labels of the packaged voices are 0.6 to 1.6 frames short.)

    Raises:
        UserError: the lengths differ by more, so the labels are for another recording.

    >>> align(np.array([5, 5, 7]), 4, "a")
    array([ 5,  5,  7, -1], dtype=int32)
    """
    extra = len(labels) - num_frames
    if extra > MAX_EXTRA or -extra > MAX_MISSING:
        raise UserError(
            f"{name} has {len(labels)} labels but {num_frames} frames of 10 ms: "
            "use the labels of this recording"
        )
    frames = np.full(num_frames, UNLABELLED, np.int32)
    frames[: len(labels)] = labels[:num_frames]
    return frames


def read_items(path: str | Path) -> list[Item]:
    """Return the items of a ZeroSpeech item file, in order.

    The first line is the header, `#file onset offset #phone prev-phone next-phone speaker`. Times
    are in seconds. Blank lines are ignored.
    """
    lines, items = read_named(path, "the item file").splitlines(), []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or (not items and line.startswith("#")):
            continue
        if len(fields) != len(HEADER.split()):
            raise UserError(
                f"{path}, line {number}: the line has {len(fields)} fields: give {HEADER}"
            )
        try:
            onset, offset = float(fields[1]), float(fields[2])
        except ValueError:
            onset = offset = float("nan")
        if not 0 <= onset < offset < float("inf"):
            raise UserError(
                f"{path}, line {number}: times must be increasing numbers (got {fields[1]} s to "
                f"{fields[2]} s): give 0 <= onset < offset"
            )
        items.append(Item(fields[0], onset, offset, *fields[3:]))
    if not items:
        raise UserError(f"{path} lists no items: give lines `{HEADER}` after the header")
    return items


def write_items(path: str | Path, items: Iterable[Item]) -> None:
    """Write an item file in the format of `read_items` and the ZeroSpeech tools.

    Fields are separated by whitespace, so whitespace in speaker names becomes "_".
    """
    lines = [HEADER]
    for item in items:
        if len(item.file.split()) != 1:
            raise UserError(
                f"recording {item.file!r} contains whitespace, a separator: rename the recording"
            )
        item = item._replace(speaker="_".join(item.speaker.split()))
        lines.append(" ".join(x if isinstance(x, str) else f"{x:.4f}" for x in item))
    write_text(path, "\n".join(lines) + "\n")


def make_items(
    labels: Mapping[str, Int[np.ndarray, " _"]],
    names: Sequence[str],
    speakers: Mapping[str, str],
) -> Iterator[Item]:
    """Yield an item for each phone in frame labels, with the phones before and after it.

    Consecutive frames with the same label are one phone. Items span all three phones, as in
    Libri-light. Phones next to silence (`SILENCES`), next to unlabelled frames (-1), or at either
    end of the utterance have no item.

    Args:
        labels: frame labels by utterance, one every 10 ms.
        names: phone names by number.
        speakers: speaker by utterance.

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
            first, last = (round(float(bounds[j]) * LABEL_SECONDS, 6) for j in (i - 1, i + 2))
            before, phone, after = three
            yield Item(utterance, first, last, phone, before, after, speakers[utterance])
