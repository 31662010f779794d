"""Phone labels: the paper's alignment text, fitted to the frames of a model."""

from pathlib import Path

import numpy as np
from jaxtyping import Int

from cpc.data.walk import read_named
from cpc.types import UserError

#: The label of a frame that has none.
UNLABELLED = -1
#: A probe has an output for each number up to the largest.
MAX_LABEL = 65_535
#: Labels that a recording may have too many, and frames at its end that may have none.
MOST_EXTRA, MOST_MISSING = 3, 10


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
