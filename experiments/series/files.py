"""Sequences of numbers in files of users: .npy, .npz, .csv and .parquet."""

import pathlib
import warnings
import zipfile
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc.data.walk import check_file, check_name, printable, walk_files
from cpc.types import UserError

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
#: Steps of a file that are checked, and measured, at a time.
BLOCK_STEPS = 2**20
#: What numpy and pandas raise for files that are damaged, of something else, or too large.
UNREADABLE = (UserError, OSError, ValueError, EOFError, MemoryError, KeyError, zipfile.BadZipFile)
#: What pandas calls the labels of a .csv that are no text.
NUMBERS = ("boolean", "integer", "floating")
#: Path and reason.
Skipped = tuple[str, str]
UNSCALED = 0.0, 1.0


class Sequences(NamedTuple):
    """Files, each a sequence (time, channels); a .npy stays on the disk until a part is read."""

    names: tuple[str, ...]
    """Path below the folder, without the ending."""
    values: tuple[np.ndarray, ...]
    scales: tuple[tuple[Any, Any], ...]
    """What is subtracted from the channels of each file, and by what they are then divided."""
    steps: tuple[np.ndarray | None, ...]
    """A label for each step, as it stands in the file; None where there is none."""
    skipped: tuple[tuple[str, str], ...]
    """Path and reason of every file that was left out."""

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
) -> Sequences:
    """Read a file, or all files below a folder; those that cannot be used are skipped.

    Raises:
        UserError: nothing is there, or more than `max_skipped_fraction` of the files are skipped.
    """
    files, skipped, passed_over = find_files(path)
    total = len(files) + len(skipped)
    root = path if path.is_dir() else path.parent
    names, values, scales, steps = [], [], [], []
    for file in files:
        try:
            sequence, labels = read_file(file, step_label)
            mean, scale = measure(sequence, channels)
        except UNREADABLE as error:
            skipped.append((printable(file.relative_to(root)), describe_problem(error)))
            continue
        names.append(file.relative_to(root).with_suffix("").as_posix())
        values.append(sequence)
        scales.append((mean, scale) if standardize else UNSCALED)
        steps.append(labels)
    if len(skipped) > max_skipped_fraction * total or not names:
        raise UserError(
            f"{len(skipped)} of {total} files of {path} cannot be used, the first "
            f"{skipped[0][0]}: {skipped[0][1]}"
        )
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UserError(f"two files below {path} have the name {name}: rename one")
    skipped += passed_over
    return Sequences(tuple(names), tuple(values), tuple(scales), tuple(steps), tuple(skipped))


def describe_problem(error: BaseException) -> str:
    """Return in one printable line why a file is left out."""
    if "pickle" in str(error) or "Python objects" in str(error):  # numpy's words tell to trust it
        return "it is damaged, or holds Python objects, which are never read"
    lines = str(error).splitlines() or [f"it cannot be read ({type(error).__name__})"]
    return printable(lines[0])


def find_files(path: pathlib.Path) -> tuple[list[pathlib.Path], list[Skipped], list[Skipped]]:
    """Return a file, or those below a folder by name; folders not read; folders passed over."""
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path} is no series: files are {', '.join(SUFFIXES)}")
        return [path], [], []
    if not path.is_dir():
        raise UserError(f"there is no {path}: set data.path to a file or folder of series")
    below, unreadable, passed_over = walk_files(path)
    files = sorted(
        file
        for file in map(pathlib.Path, below)
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    )
    if not files:
        raise UserError(f"no series in {path}: looked for {', '.join(SUFFIXES)} at any depth")
    return files, unreadable, passed_over


def read_file(path: pathlib.Path, step_label: str = "") -> tuple[np.ndarray, np.ndarray | None]:
    """Return the numbers (time, channels) of a file, and a label for each step if it has one.

    Of an .npz the array `x`, or the only one beside the labels, is taken.
    """
    check_name(path)
    check_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return as_columns(np.load(path, mmap_mode="r")), None
    if suffix == ".npz":
        with path.open("rb") as file, np.load(file) as arrays:
            labels = np.asarray(arrays[step_label]) if step_label in arrays else None
            others = [name for name in arrays if name != step_label]
            if "x" not in others and len(others) != 1:
                raise UserError(f"it holds {', '.join(others) or 'nothing'}: name its array x")
            values = as_columns(arrays["x" if "x" in others else others[0]])
    else:
        values, labels = read_table(path, step_label)
    if labels is not None and labels.shape != values.shape[:1]:
        raise UserError(f"{step_label} has shape {labels.shape}, but there are {len(values)} steps")
    return values, labels


def read_table(path: pathlib.Path, step_label: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the columns of numbers of a .csv or .parquet, and the column of labels."""
    import pandas as pd

    is_csv = path.suffix.lower() == ".csv"
    try:
        frame = read_csv(path) if is_csv else pd.read_parquet(path)
    except ImportError as error:
        raise UserError(f"a .parquet is read by pyarrow: pip install pyarrow ({error})") from None
    if is_csv:
        check_header(path)
        is_unnamed = frame.columns[0].startswith("Unnamed: ")  # what pandas calls it
        if is_unnamed and pd.api.types.is_integer_dtype(frame.iloc[:, 0]):
            raise UserError(
                "its first column has no name and whole numbers, as the numbers of the rows that "
                "DataFrame.to_csv writes: save with index=False, or name the column if it is data"
            )
    labels = frame.pop(step_label).to_numpy() if step_label in frame else None
    if labels is not None and is_csv:
        known = labels[~pd.isna(labels)]
        if not len(known) or pd.api.types.infer_dtype(known) not in NUMBERS:
            # As they stand there: pandas takes names such as None, NA or null for missing.
            how = {"usecols": [step_label], "dtype": str, "keep_default_na": False}
            labels = read_csv(path, **how)[step_label].to_numpy()
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column):
            raise UserError(f"its column {name} is of {column.dtype}, not of numbers")
        if len(column) and column.isna().all():
            raise UserError(
                f"its column {name} has no number: take it out; it may be a comma at the end of "
                "each line"
            )
    is_single = (frame.dtypes == np.float32).all()  # half the memory, and no digit lost
    return as_columns(frame.to_numpy(np.float32 if is_single else np.float64)), labels


def read_csv(path: pathlib.Path, **options: Any) -> Any:
    """Return a .csv as a frame whose columns are the names of its first line.

    A comma at the end of each row alone is passed over.

    Raises:
        UserError: rows have more fields than there are names, the first of which would be lost.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(path, index_col=False, **options)
        except pd.errors.ParserWarning:
            raise UserError(
                "its rows have more fields than its first line has names: are there decimal "
                "commas, or a name too few?"
            ) from None


def check_header(path: pathlib.Path) -> None:
    """Check that the first line of a .csv has names, which are taken off, and no numbers.

    Raises:
        UserError: all are numbers, other than 0, 1, ..., which pandas writes for columns of arrays.
    """
    import pandas as pd

    # The text: a frame gives a second column 0.0 the name 0.0.1.
    names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).to_numpy()[0]
    numbers: Any = pd.to_numeric(names, errors="coerce")  # NaN where a name is none
    if not np.isnan(numbers).any() and names.tolist() != list(map(str, range(len(names)))):
        raise UserError(
            "its first line has only numbers and would be lost: write the names of the columns "
            "there, or save the numbers as .npy"
        )


def as_columns(values: np.ndarray) -> np.ndarray:
    """Return an array as (time, channels); of one dimension it is one channel."""
    if values.dtype.kind not in "fiu":
        raise UserError(f"it holds {values.dtype}, not numbers")
    if values.ndim not in (1, 2):
        raise UserError(f"it has shape {values.shape}: give (time, channels)")
    return values[:, None] if values.ndim == 1 else values


def measure(values: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the standard deviation of each channel, a part of the file at a time.

    Both are float64, whatever the unit; a constant channel has deviation 1.

    Raises:
        UserError: another number of channels, no step, or a number that is not finite.
    """
    if values.shape[1] != channels:
        raise UserError(f"it has {values.shape[1]} channels: data.channels is {channels}")
    if not len(values):
        raise UserError("it has no step")
    starts = range(0, len(values), BLOCK_STEPS)
    origin = np.asarray(values[0], np.float64)  # taken off, a constant has exactly its own mean
    total, squares = np.zeros(channels), np.zeros(channels)
    for start in starts:
        part = np.asarray(values[start : start + BLOCK_STEPS], np.float64)
        if not np.isfinite(part).all():
            step = start + int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0])
            raise UserError(f"step {step} has a number that is not finite")
        total += (part - origin).sum(axis=0)
    mean = origin + total / len(values)
    for start in starts:  # again: E[x^2] - E[x]^2 of numbers far from 0 is what rounding left
        part = np.asarray(values[start : start + BLOCK_STEPS], np.float64)
        squares += ((part - mean) ** 2).sum(axis=0)
    deviation = np.sqrt(squares / len(values))
    return mean, np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)


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
