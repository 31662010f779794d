"""Reading of numeric series from .npy, .npz, .csv, .tsv and .parquet files."""

import hashlib
import itertools
import pathlib
import re
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cpc.data.walk import DOCUMENTS, Found, check_file, check_name, find_data, printable
from cpc.files import MAX_ARRAY_BYTES, MAX_INFLATION
from cpc.types import UserError

#: Number of time steps that are checked and measured at a time.
BLOCK_STEPS = 2**20
#: Total size up to which .npy files are kept in memory.
HELD_BYTES = 2**28
#: Suffixes of files that may accompany series, such as the .json sidecars of BIDS.
KNOWN = DOCUMENTS | {".json"}
UNSCALED = 0.0, 1.0
SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".parquet")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
#: First characters of comment lines, and the number of lines that are searched for comments.
COMMENT_MARKS, NUM_FIRST_LINES = ("#", "%", ";", "//"), 100
#: Compression methods of numpy, which decompress in small parts.
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: pandas names of label types other than text.
NUMBERS = ("boolean", "integer", "floating")


@dataclass(frozen=True)
class NpyFile:
    """A .npy file (time, channels) that is opened only while rows are read."""

    path: pathlib.Path
    dtype: np.dtype
    offset: int
    shape: tuple[int, int]
    order: Any  # "C" or "F"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self.order)
        return np.array(mapped[rows])


class Sequences(NamedTuple):
    """A set of sequences (time, channels), one per file, which may stay on disk."""

    names: tuple[str, ...]  # path below the folder, without the suffix
    values: tuple[np.ndarray | NpyFile, ...]
    scales: tuple[tuple[Any, Any], ...]  # mean and scale of each channel
    steps: tuple[np.ndarray | None, ...]  # a label for each step; None for a file without labels
    skipped: tuple[tuple[str, str], ...]  # (path, reason) of every file that is left out
    contents: tuple[bytes | None, ...] = ()  # digest of the float32 values; () if synthetic

    def read(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return time steps [start, stop) of a file as float32 (stop - start, channels)."""
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
    """Read one series, or all series below a folder except `others`, skipping unreadable files."""
    files, skipped, ignored = find_files(path, others)
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
        except Exception as error:  # readers raise many types for damaged files
            skipped.append((printable(where), describe_problem(error)))
            continue
        if name in read:
            *_, known_labels, known = read[name]
            if content is None or content != known:
                raise UserError(f"two files below {path} have the name {name}: rename one file")
            ignored.append((printable(where), f"it is a copy of another file {name}"))
            labels = labels if known_labels is None else known_labels
        read[name] = sequence, scale if standardize else UNSCALED, labels, content
    if len(skipped) > max_skipped_fraction * total or not read:
        raise UserError(
            f"{len(skipped)} of {total} files of {path} cannot be used, the first "
            f"{skipped[0][0]}: {skipped[0][1]}"
        )
    values, scales, steps, contents = zip(*read.values(), strict=True)
    return Sequences(tuple(read), values, scales, steps, (*skipped, *ignored), contents)


def describe_problem(error: BaseException) -> str:
    """Return one printable line that explains why a file is left out."""
    if "object" in str(error).lower():  # numpy would advise to trust the file
        return "it is damaged or contains Python objects, which are never read"
    lines = str(error).splitlines() or [f"it cannot be read ({type(error).__name__})"]
    return printable(lines[0])


def find_files(path: pathlib.Path, others: Sequence[pathlib.Path]) -> Found:
    """Return the series files below a folder except `others`, or one file after validation."""
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path} is not a series: give one of {', '.join(SUFFIXES)}")
        return Found([path], [], [])
    if not path.is_dir():
        raise UserError(f"{path} does not exist: set data.path to a file or folder of series")
    found, known = find_data(path, SUFFIXES, KNOWN), {file.resolve() for file in others}
    files = [file for file in found.files if file.resolve() not in known]
    if not files:
        raise UserError(f"no series in {path} at any depth: add files {', '.join(SUFFIXES)}")
    left_out = [one for one in found.left_out if pathlib.Path(one[0]).resolve() not in known]
    return Found(files, found.unreadable, left_out)


def measure(
    values: np.ndarray | NpyFile, channels: int, stop: int | None = None
) -> tuple[tuple[np.ndarray, np.ndarray], bytes | None]:
    """Return the mean and standard deviation of each channel, and a digest of the float32 values.

    The statistics are computed in blocks over steps [0, stop), or all steps if `stop` is None. They
    are float64, and a constant channel has deviation 1. The digest is None if all channels are
    constant, since flat recordings do not count as copies of each other.
    """
    num_steps, found = values.shape
    if found != channels:
        why = f"it has {found} channels: set data.channels, which is {channels}"
        if num_steps in (1, channels) or num_steps < found:
            why = f"its shape {values.shape} looks transposed: save (time, {channels} channels)"
        raise UserError(why)
    if not num_steps:
        raise UserError("it has 0 steps")
    end_step = num_steps if stop is None else stop
    starts = range(0, end_step, BLOCK_STEPS)
    blocks = [(start, min(start + BLOCK_STEPS, end_step)) for start in starts]
    origin = np.asarray(values[0], np.float64)  # subtracted, so that a constant has its exact mean
    total, squares, digest = np.zeros(channels), np.zeros(channels), hashlib.blake2b(digest_size=16)
    for start, end in blocks:
        part = np.asarray(values[start:end], np.float64)
        if not np.isfinite(part).all():
            step = start + int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0])
            raise UserError(f"step {step} has a value that is not finite: remove or fill this step")
        total += (part - origin).sum(axis=0)
    mean = origin + total / end_step
    for start, end in blocks:  # a second pass, as E[x^2] - E[x]^2 cancels for values far from 0
        part = np.asarray(values[start:end], np.float64)
        with np.errstate(over="ignore"):
            single = part.astype(np.float32) + np.float32(0)  # no -0.0
        if not np.isfinite(single).all():
            raise UserError("it has values beyond the range of float32: save them in another unit")
        squares += ((part - mean) ** 2).sum(axis=0)
        digest.update(single.tobytes())
    deviation = np.sqrt(squares / end_step)
    scale = np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)
    return (mean, scale), digest.digest() if deviation.any() else None


def name_label(label: Any) -> str:
    """Return a label as text, or an empty string for a missing label (None or NaN)."""
    if label is None or label != label or str(label) == "<NA>":  # also the NA of pandas
        return ""
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return str(int(label))
    return str(label).strip()


def number_labels(labels: Sequence) -> tuple[list, tuple[str, ...]]:
    """Return each label's index in the sorted label names, and these names.

    A step with a missing or empty label has index -1. Equal whole numbers, such as 1 and 1.0, have
    the same name.

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


def read_file(
    path: pathlib.Path, step_label: str = ""
) -> tuple[np.ndarray | NpyFile, np.ndarray | None]:
    """Read the values (time, channels) of a file, and a label for each step if the file has labels.

    The values of an .npz file are its array `x`, or its only array other than the labels.
    """
    check_name(path)
    check_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":  # read only the header
        mapped = np.load(path, mmap_mode="r")
        order = "C" if mapped.flags.c_contiguous else "F"
        shape = as_columns(mapped).shape
        return NpyFile(path, mapped.dtype, mapped.offset, shape, order), None
    if suffix == ".npz":
        values, labels = read_npz(path, step_label)
    else:
        values, labels = read_table(path, step_label)
    if labels is not None and labels.shape != values.shape[:1]:
        raise UserError(f"{step_label} has shape {labels.shape}: give {len(values)} labels")
    return values, labels


def check_size(path: pathlib.Path, num_bytes: int) -> None:
    """Raise UserError if a file declares more content than the memory limit."""
    limit = max(MAX_ARRAY_BYTES, MAX_INFLATION * path.stat().st_size)
    if num_bytes > limit:
        raise UserError(
            f"it contains {num_bytes / 1e9:.3g} GB of numbers, above the limit of "
            f"{limit / 1e9:.3g} GB: save the numbers as .npy, which stays on disk"
        )


def read_npz(path: pathlib.Path, step_label: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the values of an .npz file, and its label array if present."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    others = [name for name in members if name != step_label]
    if "x" not in others and len(others) != 1:
        raise UserError(f"it contains {', '.join(others) or 'no array'}: name one array x")
    chosen = "x" if "x" in others else others[0]
    wanted = [chosen, step_label] if step_label in members else [chosen]
    if any(members[name].compress_type not in ZIP_METHODS for name in wanted):
        raise UserError("its compression is not numpy's: save it with numpy.savez_compressed")
    check_size(path, sum(members[name].file_size for name in wanted))
    with path.open("rb") as file, np.load(file) as arrays:
        labels = np.asarray(arrays[step_label]) if step_label in members else None
        return as_columns(arrays[chosen]), labels


def read_table(path: pathlib.Path, step_label: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the numeric columns of a .csv, .tsv or .parquet file, and its label column."""
    import pandas as pd

    is_text = path.suffix.lower() in SEPARATORS
    frame = read_csv(path) if is_text else read_parquet(path, step_label)
    if is_text:
        check_header(path)
        is_unnamed = frame.columns[0].startswith("Unnamed: ")  # assigned by pandas
        if is_unnamed and pd.api.types.is_integer_dtype(frame.iloc[:, 0]):
            raise UserError(
                "its first column is unnamed and contains integers, like the index that "
                "DataFrame.to_csv writes: save with index=False, or name the column if it is data"
            )
    labels = frame.pop(step_label).to_numpy() if step_label in frame else None
    if labels is not None and is_text:
        known = labels[~pd.isna(labels)]
        if not len(known) or pd.api.types.infer_dtype(known) not in NUMBERS:
            # Read the raw text: pandas treats names such as None, NA or null as missing.
            texts = read_csv(path, usecols=[step_label], dtype=str, keep_default_na=False)
            labels = texts[step_label].to_numpy()
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column):
            if is_text:
                check_comments(path, SEPARATORS[path.suffix.lower()])
            raise UserError(f"its column {name} has type {column.dtype}: save numbers")
        if len(column) and column.isna().all():
            raise UserError(f"its column {name} is empty: remove the column or commas at line ends")
    is_single = (frame.dtypes == np.float32).all()  # half the memory without loss
    return as_columns(frame.to_numpy(np.float32 if is_single else np.float64)), labels


def read_parquet(path: pathlib.Path, step_label: str) -> Any:
    """Read a .parquet file as a data frame, without an index that pandas may have written.

    The types and sizes of the columns are checked before any column is read.
    """
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        raise UserError(f".parquet files need pyarrow ({error}): pip install pyarrow") from None
    schema = parquet.read_schema(path)
    texts = [
        one.name for one in schema if types.is_string(one.type) or types.is_large_string(one.type)
    ]
    with parquet.ParquetFile(path, read_dictionary=texts) as file:
        size = file.metadata
        index = (schema.pandas_metadata or {}).get("index_columns", ())
        fields = [field for field in schema if field.name not in index]
        for name, kind in ((field.name, field.type) for field in fields):
            is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
            if not is_number and name != step_label:
                raise UserError(f"its column {name} has type {kind}: save numbers")
        groups = map(size.row_group, range(size.num_row_groups))
        num_bytes = max(8 * size.num_rows * len(fields), sum(g.total_byte_size for g in groups))
        check_size(path, num_bytes)
        table = file.read([field.name for field in fields])
    return table.to_pandas(ignore_metadata=True)


def read_csv(path: pathlib.Path, **options: Any) -> Any:
    """Read a .csv or .tsv file as a data frame with column names from the first line.

    A separator at the end of every row is ignored.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        separator = SEPARATORS[path.suffix.lower()]
        try:
            return pd.read_csv(path, sep=separator, index_col=False, **options)
        except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
            check_comments(path, separator)
            if isinstance(error, pd.errors.ParserError):
                raise
            raise UserError(
                "its rows have more fields than its first line has names: check for decimal commas "
                "and missing names"
            ) from None


def check_comments(path: pathlib.Path, separator: str) -> None:
    """Raise UserError if an unreadable table has comments before the column names."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = list(itertools.islice(file, NUM_FIRST_LINES))
    number = len(list(itertools.takewhile(lambda line: line.startswith(COMMENT_MARKS), lines)))
    widest = max(range(len(lines)), key=lambda i: lines[i].count(separator), default=0)
    names = lines[widest].split(separator) if lines else []
    if all(re.match(r"\s*[^\d\s.+-]", name) for name in names):
        number = max(number, widest)
    if number:
        raise UserError(f"its first {number} line(s) are comments, not column names: remove them")


def check_header(path: pathlib.Path) -> None:
    """Check that the first line of a .csv or .tsv file contains names rather than numbers."""
    import pandas as pd

    # Read the text, since a data frame would rename a second column 0.0 to 0.0.1.
    separator = SEPARATORS[path.suffix.lower()]
    line = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = line.to_numpy()[0]
    numbers: Any = pd.to_numeric(names, errors="coerce")  # NaN for names
    if not np.isnan(numbers).any() and names.tolist() != list(map(str, range(len(names)))):
        raise UserError(
            "its first line has only numbers: add a line of column names, or save the file as .npy"
        )


def as_columns(values: np.ndarray) -> np.ndarray:
    """Return an array as (time, channels), adding a channel axis to one-dimensional arrays."""
    if values.dtype.kind not in "fiu":
        raise UserError(f"it contains {values.dtype}, not numbers: save numbers")
    if values.ndim not in (1, 2):
        raise UserError(f"it has shape {values.shape}: save an array (time, channels)")
    return values[:, None] if values.ndim == 1 else values
