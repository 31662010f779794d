"""Sequences of numbers in files of users: which there are, their scale and their labels."""

import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc.data.series.formats import SUFFIXES, NpyFile, read_file
from cpc.data.walk import DOCUMENTS, Found, find_data, printable
from cpc.types import UserError

#: Steps of a file that are checked, and measured, at a time.
BLOCK_STEPS = 2**20
#: Files of .npy are kept in memory until they have this many bytes together.
HELD_BYTES = 2**28
#: Endings of files that lie next to series and hold none; .json is a sidecar of BIDS.
KNOWN = DOCUMENTS | {".json"}
UNSCALED = 0.0, 1.0


class Sequences(NamedTuple):
    """Files, each a sequence (time, channels); a large .npy is read from the disk part by part."""

    names: tuple[str, ...]
    """Path below the folder, without the ending."""
    values: tuple[np.ndarray | NpyFile, ...]
    scales: tuple[tuple[Any, Any], ...]
    """What is subtracted from the channels of each file, and by what they are then divided."""
    steps: tuple[np.ndarray | None, ...]
    """A label for each step, as it stands in the file; None where there is none."""
    skipped: tuple[tuple[str, str], ...]
    """Path and reason of every file that was left out."""
    contents: tuple[bytes | None, ...] = ()
    """Digest of each file's values as float32, by which copies are found; () if made up."""

    def read(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return steps [start, stop) of a file, float32 (stop - start, channels)."""
        mean, scale = self.scales[index]
        part = np.asarray(self.values[index][start:stop], np.float64)
        return ((part - mean) / scale).astype(np.float32)


def read_sequences(
    path: pathlib.Path,
    channels: int,
    *,
    standardize: bool = True,
    step_label: str = "",
    max_skipped_fraction: float = 1.0,
    others: Sequence[pathlib.Path] = (),
) -> Sequences:
    """Read a file, or all files below a folder except `others`; skip files that cannot be read."""
    files, skipped, passed_over = find_files(path, others)
    total, held = len(files) + len(skipped), 0
    root = path if path.is_dir() else path.parent
    read: dict[str, tuple] = {}
    for file in files:
        where, name = file.relative_to(root), file.relative_to(root).with_suffix("").as_posix()
        try:
            sequence, labels = read_file(file, step_label)
            scale, content = measure(sequence, channels)
            num_bytes = sequence.dtype.itemsize * channels * len(sequence)
            if isinstance(sequence, NpyFile) and held + num_bytes <= HELD_BYTES:
                sequence, held = sequence[:], held + num_bytes
        except Exception as error:  # whatever a reader makes of a damaged file
            skipped.append((printable(where), describe_problem(error)))
            continue
        if name in read:
            *_, known_labels, known = read[name]
            if content is None or content != known:
                raise UserError(f"two files below {path} have the name {name}: rename one")
            passed_over.append((printable(where), f"it is a copy of another file {name}"))
            labels = labels if known_labels is None else known_labels
        read[name] = sequence, scale if standardize else UNSCALED, labels, content
    if len(skipped) > max_skipped_fraction * total or not read:
        raise UserError(
            f"{len(skipped)} of {total} files of {path} cannot be used, the first "
            f"{skipped[0][0]}: {skipped[0][1]}"
        )
    values, scales, steps, contents = zip(*read.values(), strict=True)
    return Sequences(tuple(read), values, scales, steps, (*skipped, *passed_over), contents)


def describe_problem(error: BaseException) -> str:
    """Return in one printable line why a file is left out."""
    if "object" in str(error).lower():  # numpy's own words tell to trust it
        return "it is damaged, or holds Python objects, which are never read"
    lines = str(error).splitlines() or [f"it cannot be read ({type(error).__name__})"]
    return printable(lines[0])


def find_files(path: pathlib.Path, others: Sequence[pathlib.Path]) -> Found:
    """Return a file, or the files below a folder by what becomes of them, without `others`."""
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path} is no series: files are {', '.join(SUFFIXES)}")
        return Found([path], [], [])
    if not path.is_dir():
        raise UserError(f"there is no {path}: set data.path to a file or folder of series")
    found, known = find_data(path, SUFFIXES, KNOWN), {file.resolve() for file in others}
    files = [file for file in found.files if file.resolve() not in known]
    if not files:
        raise UserError(f"no series in {path}: looked for {', '.join(SUFFIXES)} at any depth")
    left_out = [one for one in found.left_out if pathlib.Path(one[0]).resolve() not in known]
    return Found(files, found.unreadable, left_out)


def measure(
    values: np.ndarray | NpyFile, channels: int, stop: int | None = None
) -> tuple[tuple[np.ndarray, np.ndarray], bytes | None]:
    """Return mean and standard deviation of each channel, and a digest of the values as float32.

    They are of steps [0, stop), all by default, and a part of them is in memory at a time. Mean and
    deviation are float64, whatever the unit; a constant channel has deviation 1. The digest is None
    if all channels are constant, as a flat recording is no copy of another.
    """
    num_steps, found = values.shape
    if found != channels:
        why = f"it has {found} channels: data.channels is {channels}"
        if num_steps in (1, channels) or num_steps < found:
            why = (
                f"its shape {values.shape} looks transposed: save (time, channels), where "
                f"data.channels is {channels}"
            )
        raise UserError(why)
    if not num_steps:
        raise UserError("it has no step")
    end_step = num_steps if stop is None else stop
    starts = range(0, end_step, BLOCK_STEPS)
    blocks = [(start, min(start + BLOCK_STEPS, end_step)) for start in starts]
    origin = np.asarray(values[0], np.float64)  # taken off, a constant has exactly its own mean
    total, squares, digest = np.zeros(channels), np.zeros(channels), hashlib.blake2b(digest_size=16)
    for start, end in blocks:
        part = np.asarray(values[start:end], np.float64)
        if not np.isfinite(part).all():
            step = start + int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0])
            raise UserError(f"step {step} has a number that is not finite")
        total += (part - origin).sum(axis=0)
    mean = origin + total / end_step
    for start, end in blocks:  # again: E[x^2] - E[x]^2 of numbers far from 0 is what rounding left
        part = np.asarray(values[start:end], np.float64)
        with np.errstate(over="ignore"):
            single = part.astype(np.float32) + np.float32(0)  # no -0.0
        if not np.isfinite(single).all():
            raise UserError("it has numbers beyond the range of float32: save it in another unit")
        squares += ((part - mean) ** 2).sum(axis=0)
        digest.update(single.tobytes())
    deviation = np.sqrt(squares / end_step)
    scale = np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)
    return (mean, scale), digest.digest() if deviation.any() else None


def name_label(label: Any) -> str:
    """Return a label as text, empty if it is missing: None, or not a number."""
    if label is None or label != label or str(label) == "<NA>":  # pandas' own, too
        return ""
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return str(int(label))
    return str(label).strip()


def number_labels(labels: Sequence) -> tuple[list, tuple[str, ...]]:
    """Return labels by file, each as the number of its name, and the names.

    A step whose label is missing, or empty, has -1; whole numbers are one name however they are
    written.

    >>> number_labels([np.array(["b", "a"]), None])[1]
    ('a', 'b')
    >>> number_labels([np.array([1.0, np.nan]), np.array([2])])[0][0].tolist()
    [0, -1]
    """
    known = [np.array([name_label(label) for label in one]) for one in labels if one is not None]
    names = np.unique(np.concatenate([one[one != ""] for one in known])) if known else np.zeros(0)
    numbers = (
        np.where(one == "", -1, np.searchsorted(names, one)).astype(np.int32) for one in known
    )
    return [None if one is None else next(numbers) for one in labels], tuple(map(str, names))
