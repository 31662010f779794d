"""Which series train and which test: whole groups, lists of names, or the end of a single one."""

import pathlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cpc.data.recordings import read_list
from cpc.data.series.files import UNSCALED, Sequences, measure
from cpc.data.series.formats import SUFFIXES
from cpc.data.skipped import find_copies
from cpc.data.walk import same_name
from cpc.types import UserError
from experiments.command.config import Config


class Part(NamedTuple):
    """Pieces of sequences, to train or to test on."""

    sequences: Sequences
    pieces: tuple[tuple[int, int, int], ...]
    """(file, first step, steps) of each."""

    def read(self, number: int, start: int = 0, length: int | None = None) -> np.ndarray:
        """Return steps of a piece, float32 (length, channels); all of them by default."""
        file, first, steps = self.pieces[number]
        stop = first + steps if length is None else first + start + length
        return self.sequences.read(file, first + start, stop)


def split(
    config: Config,
    sequences: Sequences,
    groups: Sequence[str] = (),
    listed: tuple[list[int], list[int]] | None = None,
) -> tuple[Part, Part]:
    """Return the parts to train and to test on; a group, by default a sequence, is in one of them.

    Groups are drawn by the seed, except if lists of sequences are given. Of a single sequence the
    parts are beginning and end, scaled by the beginning. Copies of a sequence are in `skipped`.
    """
    fraction, lengths = config.data.test_fraction, [len(values) for values in sequences.values]
    chosen = [*listed[0], *listed[1]] if listed else list(range(len(lengths)))
    sequences, kept = leave_out_copies(sequences, chosen)
    own = groups or sequences.names
    names = list(dict.fromkeys(own[file] for file in kept))
    if listed:
        is_kept = set(kept)
        parts = [[(file, 0, lengths[file]) for file in part if file in is_kept] for part in listed]
    elif len(kept) == 1:
        file, cut = kept[0], round((1 - fraction) * lengths[kept[0]])
        parts = [(file, 0, cut)], [(file, cut, lengths[file] - cut)]
        if cut and sequences.scales[file] != UNSCALED:
            values, scales = sequences.values[file], list(sequences.scales)
            scales[file], _ = measure(values, values.shape[1], cut)
            sequences = sequences._replace(scales=tuple(scales))
    elif len(names) == 1:
        raise UserError(
            f"all series belong to the group {names[0]}: give several groups, or set another "
            "data.group_level"
        )
    else:
        order = np.random.default_rng(config.seed).permutation(len(names)).tolist()
        num_test = int(np.clip(round(fraction * len(names)), 1, len(names) - 1))
        held = {names[number] for number in order[:num_test]}
        parts = [
            [(file, 0, lengths[file]) for file in kept if (own[file] in held) == is_test]
            for is_test in (False, True)
        ]
    window = config.data.window_steps
    for name, pieces in zip(("train", "test"), parts, strict=True):
        if (longest := max((steps for _, _, steps in pieces), default=0)) < window:
            raise UserError(
                f"no file to {name} on is as long as a window of {window} steps: the longest has "
                f"{longest}; choose a smaller data.window_steps"
            )
    train, test = (Part(sequences, tuple(pieces)) for pieces in parts)
    return train, test


def leave_out_copies(sequences: Sequences, chosen: Sequence[int]) -> tuple[Sequences, list[int]]:
    """Return sequences with copies among the chosen ones in `skipped`, and the chosen without them.

    Of several sequences with equal values, one with labels of steps is kept if there is any.
    """
    if not sequences.contents:
        return sequences, [*chosen]
    order = sorted(chosen, key=lambda file: sequences.steps[file] is None)
    copies = find_copies(sequences.contents[file] for file in order)
    copies = {order[copy]: order[first] for copy, first in copies.items()}
    names = sequences.names
    listed = [(names[copy], f"it is a copy of {names[of]}") for copy, of in copies.items()]
    kept = [file for file in chosen if file not in copies]
    return sequences._replace(skipped=(*sequences.skipped, *listed)), kept


def read_lists(
    config: Config, sequences: Sequences, groups: Sequence[str]
) -> tuple[list[int], list[int]] | None:
    """Return the sequences that `data.train_list` and `data.test_list` name; None without lists.

    A line names a file, below data.path or by its last part, or a folder with all files below it.
    """
    lists = {key: config.data[key] for key in ("train_list", "test_list")}
    if not any(lists.values()):
        return None
    known: dict[str, list[int]] = defaultdict(list)
    for file, name in enumerate(map(same_name, sequences.names)):
        parts = name.split("/")
        for title in {*("/".join(parts[: i + 1]) for i in range(len(parts))), parts[-1]}:
            known[title].append(file)
    absent = {without_ending(same_name(path)) for path, _ in sequences.skipped}
    found: list[list[int]] = []
    for key, path in lists.items():
        lines = read_list(pathlib.Path(path).expanduser())
        entries = {line: without_ending(line.rstrip("/")) for line in lines}
        for line, entry in entries.items():
            if entry not in known and line not in known and entry not in absent:
                raise UserError(
                    f"data.{key} names {line}, which is no file or folder of data.path: names are "
                    f"like {sequences.names[0]}"
                )
        files = {file for line, entry in entries.items() for file in known[entry] or known[line]}
        found.append(sorted(files))
    train, test = ({groups[file] for file in files} for files in found)
    if both := sorted(train & test):
        raise UserError(
            f"{both[0]} is in data.train_list and in data.test_list: leave it out of one"
        )
    return found[0], found[1]


def without_ending(name: str) -> str:
    """Return the name of a file as `Sequences.names` has it.

    >>> without_ending("a/b.NPY"), without_ending("a.1")
    ('a/b', 'a.1')
    """
    path = pathlib.PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in SUFFIXES else name
