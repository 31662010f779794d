"""Loading, splitting and labelling the series of a config, and drawing windows."""

import pathlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from cpc.data import series, uniform_windows
from cpc.data.recordings import read_list
from cpc.data.walk import Skipped, count_names, find_copies, same_name
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset
from experiments.command.run_dir import Fingerprint
from experiments.training.checks import data_root, group_files, name_of
from experiments.training.sequences import read_file_labels, without_ending


class Part(NamedTuple):
    """Training or test data: pieces of sequences, which are ranges of steps."""

    sequences: series.Sequences
    pieces: tuple[tuple[int, int, int], ...]
    """(file, first step, number of steps) of each piece."""

    def read(self, number: int, start: int = 0, length: int | None = None) -> np.ndarray:
        """Return `length` steps of a piece, by default all, as float32 (length, channels)."""
        file, first, steps = self.pieces[number]
        stop = first + steps if length is None else first + start + length
        return self.sequences.read(file, first + start, stop)


def split(
    config: Config,
    sequences: series.Sequences,
    groups: Sequence[str] = (),
    listed: tuple[list[int], list[int]] | None = None,
) -> tuple[Part, Part]:
    """Split sequences into training and test data that share no group.

    Groups are drawn at random, unless `listed` selects sequences. By default each
    sequence is a group. A single sequence is split into its beginning and its end. Both are scaled
    by the beginning's statistics. Copies are moved to `skipped`.
    """
    fraction, lengths = config.data.test_fraction, [len(values) for values in sequences.values]
    chosen = [*listed[0], *listed[1]] if listed else list(range(len(lengths)))
    sequences, kept = leave_out_copies(sequences, chosen)
    own = groups or sequences.names
    names = list(dict.fromkeys(own[file] for file in kept))
    if listed:
        both = [sorted(set(kept).intersection(part)) for part in listed]
        parts = [[(file, 0, lengths[file]) for file in part] for part in both]
    elif len(kept) == 1:
        file, cut = kept[0], round((1 - fraction) * lengths[kept[0]])
        parts = [(file, 0, cut)], [(file, cut, lengths[file] - cut)]
        if cut and sequences.scales[file] != series.UNSCALED:
            values, scales = sequences.values[file], list(sequences.scales)
            scales[file], _ = series.measure(values, values.shape[1], cut)
            sequences = sequences._replace(scales=tuple(scales))
    elif len(names) == 1:
        raise UserError(f"all series are in one group, {names[0]}: change data.group_level")
    else:
        order = np.random.default_rng(config.seed).permutation(len(names)).tolist()
        num_test = int(np.clip(round(fraction * len(names)), 1, len(names) - 1))
        held_out = {names[number] for number in order[:num_test]}
        parts = [
            [(file, 0, lengths[file]) for file in kept if (own[file] in held_out) == is_test]
            for is_test in (False, True)
        ]
    window = config.data.window_steps
    for name, pieces in zip(("train", "test"), parts, strict=True):
        if (longest := max((steps for _, _, steps in pieces), default=0)) < window:
            problem = f"data.window_steps {window} is longer than every {name} file"
            raise UserError(f"{problem} (the longest has {longest}): lower window_steps")
    train, test = (Part(sequences, tuple(pieces)) for pieces in parts)
    return train, test


def leave_out_copies(
    sequences: series.Sequences, chosen: Sequence[int]
) -> tuple[series.Sequences, list[int]]:
    """Move copies among the chosen sequences to `skipped`, and return the sequences to keep.

    Among sequences with equal values, one with step labels is preferred.
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
    config: Config, sequences: series.Sequences, groups: Sequence[str]
) -> tuple[list[int], list[int]] | None:
    """Return the sequences in `data.train_list` and `data.test_list`, or None if neither is set.

    Each line is a file path relative to data.path, a file name or a folder of files.
    """
    lists = {key: config.data[key] for key in ("train_list", "test_list")}
    if not any(lists.values()):
        return None
    known: dict[str, list[int]] = defaultdict(list)
    for file, name in enumerate(map(same_name, sequences.names)):
        parts = name.split("/")
        for title in {*("/".join(parts[: i + 1]) for i in range(len(parts))), parts[-1]}:
            known[title].append(file)
    skipped = {without_ending(same_name(path), series.SUFFIXES) for path, _ in sequences.skipped}
    found: list[list[int]] = []
    for key, path in lists.items():
        lines = read_list(pathlib.Path(path).expanduser())
        entries = {line: without_ending(line.rstrip("/"), series.SUFFIXES) for line in lines}
        for line, entry in entries.items():
            if entry not in known and line not in known and entry not in skipped:
                example = f"use names such as {sequences.names[0]}"
                raise UserError(f"data.{key} names {line}, which is not in data.path: {example}")
        files = {file for line, entry in entries.items() for file in known[entry] or known[line]}
        found.append(sorted(files))
    train, test = ({groups[file] for file in files} for files in found)
    for group in sorted(train & test):
        raise UserError(f"{group} is in data.train_list and data.test_list: remove it from one")
    return found[0], found[1]


class SeriesData(NamedTuple):
    """Sequences of steps, with their labels and groups."""

    train: Part
    test: Part
    step_labels: tuple[np.ndarray, ...]
    """Label indices of the steps in each file, or a single -1 if the file has none."""
    step_names: tuple[str, ...]
    file_labels: np.ndarray
    """Label index of each file, or -1 if the file has no label."""
    file_names: tuple[str, ...]
    groups: tuple[str, ...]
    """Group of each file, such as its subject. Groups are not split between training and test."""
    name: str

    @property
    def skipped(self) -> Sequence[Skipped]:
        """Skipped files, each with the reason."""
        return self.train.sequences.skipped

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return fingerprints of training and test data: ranges, file names and file contents."""
        sequences, found = self.train.sequences, {}
        content = b"".join(one or b"" for one in sequences.contents)
        for name, part in (("train", self.train), ("test", self.test)):
            ranges = repr((part.pieces, sequences.names)).encode()
            found[name] = Fingerprint(len(part.pieces), ranges, content)
        return found


def load_data(config: Config, log: Callable[[str], object]) -> SeriesData:
    """Read or generate the sequences of `config.data`, and split the sequences."""
    options = config.data
    if options.source == "ar1":
        sequences = make_ar1(config)
    else:
        lists = (options.file_labels, options.train_list, options.test_list)
        others = [pathlib.Path(path).expanduser() for path in lists if path]
        sequences = series.read_sequences(
            data_root(config),
            others=others,
            **subset(options, "channels", "standardize", "step_label", "max_skipped_fraction"),
        )
    groups = group_files(options.group_level, sequences.names)
    train, test = split(config, sequences, groups, read_lists(config, sequences, groups))
    found, step_names = series.number_labels(sequences.steps)
    step_labels = tuple(np.full(1, -1, np.int32) if own is None else own for own in found)
    labels = label_files(config, sequences.names)
    file_names = np.unique(labels[labels != ""])
    files = np.where(labels == "", -1, np.searchsorted(file_names, labels)).astype(np.int32)
    names, name = tuple(map(str, file_names)), name_of(config)
    data = SeriesData(train, test, step_labels, step_names, files, names, groups, name)
    log(describe_data(config, sequences, data))
    return data


def describe_data(config: Config, sequences: series.Sequences, data: SeriesData) -> str:
    """Return a log line that counts training, test and skipped files."""
    options, train, test = config.data, data.train, data.test
    num_short = sum(steps < options.window_steps for _, _, steps in train.pieces)
    short = f" ({num_short:,} of them shorter than a window and padded)" if num_short else ""
    tested = f"{len(test.pieces):,} to test"
    if {file for file, *_ in train.pieces} & {file for file, *_ in test.pieces}:
        tested = "its end to test"
    elif options.group_level:
        own, held_out = ({data.groups[file] for file, *_ in part.pieces} for part in (train, test))
        tested += f", of {len(held_out):,} of the {len(held_out | own):,} groups"
    number = f"{len(sequences.names):,} files of {options.channels} channels"
    parts = [
        f"data: {number}, {sum(map(len, sequences.values)):,} steps",
        f"{len(train.pieces):,} to train{short}, {tested}",
        count_names(sequences.skipped, "files skipped"),
    ]
    if copies := train.sequences.skipped[len(sequences.skipped) :]:
        parts.append(count_names(copies, "copies skipped"))
    contents = enumerate(sequences.contents)
    if flat := [(sequences.names[file], "") for file, content in contents if content is None]:
        parts.append(count_names(flat, "flat files kept"))
    if num_without := (data.file_labels < 0).sum() if data.file_names else 0:
        parts.append(f"{num_without:,} files without a label")
    return "; ".join(parts)


def label_files(config: Config, names: tuple[str, ...]) -> np.ndarray:
    """Return each file's label, which is "" for files without one."""
    options = config.data
    if options.source == "ar1" or options.file_label == "none":
        return np.full(len(names), "")
    if options.file_label == "folder":
        return np.array([pathlib.PurePosixPath(name).parent.name for name in names])
    return read_file_labels(options.file_labels, names, series.SUFFIXES)


def make_windows(
    part: Part, *, window_steps: int, batch_size: int, seed: int
) -> Callable[[int], Batch]:
    """Return a pure function from a step to a batch of windows, drawn by `uniform_windows`.

    A batch has this process's rows of the global batch. Its arrays are x, float32 (b, window_steps,
    channels), and the int32 arrays (b,) sequence (row of the global batch), utterance (file), start
    (step in the file) and sample (position in a concatenation of all files, each padded to at least
    a window). Pieces shorter than a window are padded with zeros. If there are any, the batch
    also has num_samples.
    """
    files, firsts, lengths = np.array(part.pieces).T
    draw_windows, real = uniform_windows(lengths, window_steps), np.minimum(lengths, window_steps)
    is_any_short = (real < window_steps).any()
    padded = [max(window_steps, len(values)) for values in part.sequences.values]
    offsets = np.append(0, np.cumsum(padded))[:-1]
    rows_each = batch_size // jax.process_count()
    rows = np.arange(rows_each) + jax.process_index() * rows_each

    def draw(step: int) -> Batch:
        piece, begin = draw_windows(np.random.default_rng((seed, step)), batch_size)
        piece, begin = piece[rows], begin[rows]
        x = np.zeros((rows_each, window_steps, part.sequences.values[0].shape[1]), np.float32)
        for row, (number, first) in enumerate(zip(piece.tolist(), begin.tolist(), strict=True)):
            x[row, : real[number]] = part.read(number, first, int(real[number]))
        start = firsts[piece] + begin
        return {
            "x": x,
            "sequence": rows.astype(np.int32),
            "utterance": files[piece].astype(np.int32),
            "start": start.astype(np.int32),
            "sample": (offsets[files[piece]] + start).astype(np.int32),
            **({"num_samples": real[piece].astype(np.int32)} if is_any_short else {}),
        }

    return draw


def make_ar1(config: Config) -> series.Sequences:
    """Generate AR(1) sequences, in which x_t = r x_(t-1) + sqrt(1 - r^2) e_t with normal noise e.

    Channels are independent. Each sequence has the length of a window. The label of a step is the
    sign of its first channel.
    """
    options, r = config.data, config.data.correlation
    shape = (options.window_steps, options.num_files, options.channels)
    noise = np.random.default_rng(config.seed).standard_normal(shape)
    values = np.empty(shape, np.float32)
    values[0] = noise[0]  # the stationary distribution
    for t in range(1, len(values)):
        values[t] = r * values[t - 1] + np.sqrt(1 - r**2) * noise[t]
    files = tuple(np.ascontiguousarray(values.swapaxes(0, 1)))
    names = tuple(f"{number:05d}" for number in range(len(files)))
    steps = tuple(np.where(one[:, 0] > 0, "above", "below") for one in files)
    return series.Sequences(names, files, (series.UNSCALED,) * len(files), steps, skipped=())


def ar1_information(correlation: float, steps: int, channels: int = 1) -> float:
    """Return the mutual information in nats between AR(1) values that are `steps` apart.

    >>> round(ar1_information(0.9, 1), 4), round(ar1_information(0.9, 2, channels=2), 4)
    (0.8304, 1.0674)
    """
    return -0.5 * channels * float(np.log1p(-(correlation ** (2 * steps))))


def labels_of_frames(labels: np.ndarray, start: int, num_frames: int, stride: int) -> np.ndarray:
    """Return the label at each encoder frame's middle step, if the first frame is at `start`.

    >>> labels_of_frames(np.array([0, 0, 1, 1, 2, 2]), 2, 2, 2).tolist()
    [1, 2]
    """
    middles = start + stride * np.arange(num_frames) + stride // 2
    return labels[np.minimum(middles, len(labels) - 1)]
