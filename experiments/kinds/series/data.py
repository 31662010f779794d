"""From the data section of a series config to sequences, their split, labels and windows."""

import csv
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from cpc.data import uniform_windows
from cpc.data.series.files import UNSCALED, Sequences, number_labels, read_sequences
from cpc.data.skipped import Skipped, count_names
from cpc.data.walk import read_named, same_name
from cpc.types import Batch, UserError
from experiments.command.config import Config
from experiments.command.run_dir import Fingerprint
from experiments.kinds.series.split import Part, read_lists, split, without_ending
from experiments.training.checks import data_root, group_files


class SeriesData(NamedTuple):
    """What an experiment on series is run on."""

    train: Part
    test: Part
    step_labels: tuple[np.ndarray | None, ...]
    """The numbers of the steps' labels, for each file."""
    step_names: tuple[str, ...]
    file_labels: np.ndarray
    """Number of each file's label, -1 where there is none."""
    file_names: tuple[str, ...]
    groups: tuple[str, ...]
    """The group of each file, such as its subject; a group is in one part of the split."""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """What was left out, and why."""
        return self.train.sequences.skipped

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return what tells the parts of these data from those of others."""
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}


def load_data(config: Config, log: Callable[[str], object]) -> SeriesData:
    """Read, or make up, the sequences of `config.data`, and split them."""
    options = config.data
    if options.source == "ar1":
        sequences = make_ar1(config)
    else:
        lists = (options.file_labels, options.train_list, options.test_list)
        sequences = read_sequences(
            data_root(config),
            options.channels,
            standardize=options.standardize,
            step_label=options.step_label,
            max_skipped_fraction=options.max_skipped_fraction,
            others=[pathlib.Path(path).expanduser() for path in lists if path],
        )
    groups = group_files(options.group_level, sequences.names)
    train, test = split(config, sequences, groups, read_lists(config, sequences, groups))
    step_labels, step_names = number_labels(sequences.steps)
    labels = label_files(config, sequences.names)
    file_names = np.unique(labels[labels != ""])
    files = np.where(labels == "", -1, np.searchsorted(file_names, labels)).astype(np.int32)
    names = tuple(map(str, file_names))
    data = SeriesData(train, test, tuple(step_labels), step_names, files, names, groups)
    log(describe_data(config, sequences, data))
    return data


def describe_data(config: Config, sequences: Sequences, data: SeriesData) -> str:
    """Return a line on the files that were read, how they are split, and which are left out."""
    options, train, test = config.data, data.train, data.test
    num_short = sum(steps < options.window_steps for _, _, steps in train.pieces)
    short = f" ({num_short:,} of them shorter than a window and filled up)" if num_short else ""
    tested = f"{len(test.pieces):,} to test"
    if {file for file, *_ in train.pieces} & {file for file, *_ in test.pieces}:
        tested = "its end to test"
    elif options.group_level:
        whole, held = ({data.groups[file] for file, *_ in part.pieces} for part in (train, test))
        tested += f", of {len(held):,} of the {len(held | whole):,} groups"
    parts = [
        f"data: {len(sequences.names):,} files of {options.channels} channels, "
        f"{sum(map(len, sequences.values)):,} steps",
        f"{len(train.pieces):,} to train{short}, {tested}",
        count_names(sequences.skipped, "files skipped"),
    ]
    if copies := train.sequences.skipped[len(sequences.skipped) :]:
        parts.append(count_names(copies, "copies left out"))
    contents = enumerate(sequences.contents)
    if flat := [(sequences.names[file], "") for file, content in contents if content is None]:
        parts.append(count_names(flat, "flat files kept"))
    if num_without := (data.file_labels < 0).sum() if data.file_names else 0:
        parts.append(f"{num_without:,} files without a label")
    return "; ".join(parts)


def label_files(config: Config, names: tuple[str, ...]) -> np.ndarray:
    """Return the label of each file, "" where there is none."""
    options = config.data
    if options.source == "ar1" or options.file_label == "none":
        return np.full(len(names), "")
    if options.file_label == "folder":
        return np.array([pathlib.PurePosixPath(name).parent.name for name in names])
    path = pathlib.Path(options.file_labels).expanduser()
    lines = read_named(path, "data.file_labels").splitlines()
    table: dict[str, str] = {}
    for number, row in enumerate(csv.reader(lines, skipinitialspace=True), start=1):
        if not "".join(row).strip():
            continue
        *parts, label = row
        name = ",".join(parts).strip()
        if not parts or table.get(name, label.strip()) != label.strip():
            why = "has another label on an earlier line" if parts else "is no name,label"
            raise UserError(f"data.file_labels {path}, line {number}: {name or label} {why}")
        table[name] = label.strip()
    table = {without_ending(name): label for name, label in table.items()} | table
    found = np.array(
        [table.get(name, table.get(name.rsplit("/", 1)[-1], "")) for name in map(same_name, names)]
    )
    if (found == "").all():
        raise UserError(f"{path} labels none of the files, the first of which is {names[0]}")
    return found


def make_windows(
    part: Part, *, window_steps: int, batch_size: int, seed: int
) -> Callable[[int], Batch]:
    """Return step -> batch of windows, drawn as by `uniform_windows`: a pure function of the step.

    A batch, this process's rows of the global one: x float32 (b, window_steps, channels), and int32
    (b,) sequence (row of the global batch), utterance (its file), start (step of the file), sample
    (the same on a line of all files, each at least as long as a window) and, if some pieces are
    shorter than a window and filled up with zeros, num_samples.
    """
    files, firsts, lengths = np.array(part.pieces).T
    draw_windows, real = uniform_windows(lengths, window_steps), np.minimum(lengths, window_steps)
    is_any_short = (real < window_steps).any()
    of_files = [max(window_steps, len(values)) for values in part.sequences.values]
    line = np.append(0, np.cumsum(of_files))[:-1]
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
            "sample": (line[files[piece]] + start).astype(np.int32),
            **({"num_samples": real[piece].astype(np.int32)} if is_any_short else {}),
        }

    return draw


def make_ar1(config: Config) -> Sequences:
    """Make sequences of x_t = r x_(t-1) + sqrt(1 - r^2) e_t, each channel by itself, e normal.

    Each is as long as a window. A step's label is the sign of its first channel.
    """
    options, r = config.data, config.data.correlation
    shape = (options.window_steps, options.num_files, options.channels)
    noise = np.random.default_rng(config.seed).standard_normal(shape)
    values = np.empty(shape, np.float32)
    values[0] = noise[0]  # of the stationary distribution
    for t in range(1, len(values)):
        values[t] = r * values[t - 1] + np.sqrt(1 - r**2) * noise[t]
    files = tuple(np.ascontiguousarray(values.swapaxes(0, 1)))
    return Sequences(
        names=tuple(f"{number:05d}" for number in range(len(files))),
        values=files,
        scales=(UNSCALED,) * len(files),
        steps=tuple(np.where(one[:, 0] > 0, "above", "below") for one in files),
        skipped=(),
    )


def ar1_information(correlation: float, steps: int, channels: int = 1) -> float:
    """Return the nats that two numbers, Gaussian and `steps` apart, hold about each other.

    >>> round(ar1_information(0.9, 1), 4), round(ar1_information(0.9, 2, channels=2), 4)
    (0.8304, 1.0674)
    """
    return -0.5 * channels * float(np.log1p(-(correlation ** (2 * steps))))


def labels_of_frames(labels: np.ndarray, start: int, num_frames: int, stride: int) -> np.ndarray:
    """Return the label at the middle of each of an encoder's frames, from a step on.

    >>> labels_of_frames(np.array([0, 0, 1, 1, 2, 2]), 2, 2, 2).tolist()
    [1, 2]
    """
    middles = start + stride * np.arange(num_frames) + stride // 2
    return labels[np.minimum(middles, len(labels) - 1)]


def fingerprint(part: Part) -> Fingerprint:
    """Return the places and names of the pieces, and the files' content."""
    places = repr((part.pieces, part.sequences.names)).encode()
    content = b"".join(one or b"" for one in part.sequences.contents)
    return Fingerprint(len(part.pieces), places, content)
