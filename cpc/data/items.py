"""Item files of ZeroSpeech: which stretch of which recording is a token of which phone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from cpc.data.walk import read_named
from cpc.files import write_text
from cpc.types import Item, UserError

HEADER = "#file onset offset #phone prev-phone next-phone speaker"
#: What aligners call silence: no phone, no context of one, and nothing to recognise.
SILENCES = frozenset({"pau", "sil", "SIL", "sp", "spn", "SPN", "h#", "#", "_", "<eps>"})
LABEL_SECONDS = 0.01


def read_items(path: str | Path) -> list[Item]:
    """Return the tokens that an item file of ZeroSpeech lists, in its order.

    The first line is a heading, `#file onset offset #phone prev-phone next-phone speaker`; times
    are in seconds, and blank lines are passed over.

    Raises:
        UserError: names file and line of one that is not of this form.
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

    Raises:
        UserError: an utterance's id has white space.
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
