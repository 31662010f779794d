"""Readers of one file of a series: .npy, .npz, .csv, .tsv and .parquet."""

import itertools
import pathlib
import re
import warnings
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpc.data.walk import check_file, check_name
from cpc.files import MAX_ARRAY_BYTES, MAX_INFLATION
from cpc.types import UserError

SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".parquet")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
#: Beginnings of lines that are comments, and lines in which they are looked for.
COMMENT_MARKS, NUM_FIRST_LINES = ("#", "%", ";", "//"), 100
#: Compression that numpy writes, which is undone in small parts.
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Names that pandas gives to types of labels other than text.
NUMBERS = ("boolean", "integer", "floating")


@dataclass(frozen=True)
class NpyFile:
    """A .npy (time, channels) on the disk, open only while rows are read."""

    path: pathlib.Path
    dtype: np.dtype
    offset: int
    shape: tuple[int, int]
    order: Any
    """"C" or "F"."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, self.order)
        return np.array(mapped[rows])


def read_file(
    path: pathlib.Path, step_label: str = ""
) -> tuple[np.ndarray | NpyFile, np.ndarray | None]:
    """Return the numbers (time, channels) of a file, and a label for each step if it has one.

    An .npz holds the numbers under `x`, or as its only array besides the labels.
    """
    check_name(path)
    check_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return open_npy(path), None
    if suffix == ".npz":
        values, labels = read_npz(path, step_label)
    else:
        values, labels = read_table(path, step_label)
    if labels is not None and labels.shape != values.shape[:1]:
        raise UserError(f"{step_label} has shape {labels.shape}, but there are {len(values)} steps")
    return values, labels


def check_size(path: pathlib.Path, num_bytes: int) -> None:
    """Check that the contents of a file, as its header gives them, may be read into memory."""
    limit = max(MAX_ARRAY_BYTES, MAX_INFLATION * path.stat().st_size)
    if num_bytes > limit:
        raise UserError(
            f"it holds {num_bytes / 1e9:.3g} GB of numbers, above the limit of {limit / 1e9:.3g} "
            "GB: save them as .npy, which stays on the disk"
        )


def open_npy(path: pathlib.Path) -> NpyFile:
    """Return a .npy of which only the header is read."""
    mapped = np.load(path, mmap_mode="r")
    shape = as_columns(mapped).shape
    order = "C" if mapped.flags.c_contiguous else "F"
    return NpyFile(path, mapped.dtype, mapped.offset, shape, order)


def read_npz(path: pathlib.Path, step_label: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the numbers of an .npz, and the array of labels if there is one."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    others = [name for name in members if name != step_label]
    if "x" not in others and len(others) != 1:
        raise UserError(f"it holds {', '.join(others) or 'no array'}: name its array x")
    chosen = "x" if "x" in others else others[0]
    wanted = [chosen, step_label] if step_label in members else [chosen]
    if any(members[name].compress_type not in ZIP_METHODS for name in wanted):
        raise UserError("its compression is not that of numpy: save it by numpy.savez_compressed")
    check_size(path, sum(members[name].file_size for name in wanted))
    with path.open("rb") as file, np.load(file) as arrays:
        labels = np.asarray(arrays[step_label]) if step_label in members else None
        return as_columns(arrays[chosen]), labels


def read_table(path: pathlib.Path, step_label: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the columns of numbers of a .csv, .tsv or .parquet, and the column of labels."""
    import pandas as pd

    is_text = path.suffix.lower() in SEPARATORS
    frame = read_csv(path) if is_text else read_parquet(path, step_label)
    if is_text:
        check_header(path)
        is_unnamed = frame.columns[0].startswith("Unnamed: ")  # what pandas calls it
        if is_unnamed and pd.api.types.is_integer_dtype(frame.iloc[:, 0]):
            raise UserError(
                "its first column has no name and whole numbers, as the numbers of the rows that "
                "DataFrame.to_csv writes: save with index=False, or name the column if it is data"
            )
    labels = frame.pop(step_label).to_numpy() if step_label in frame else None
    if labels is not None and is_text:
        known = labels[~pd.isna(labels)]
        if not len(known) or pd.api.types.infer_dtype(known) not in NUMBERS:
            # As they stand there: pandas takes names such as None, NA or null for missing.
            how = {"usecols": [step_label], "dtype": str, "keep_default_na": False}
            labels = read_csv(path, **how)[step_label].to_numpy()
    for name, column in frame.items():
        if not pd.api.types.is_numeric_dtype(column):
            if is_text:
                check_comments(path, SEPARATORS[path.suffix.lower()])
            raise UserError(f"its column {name} is of {column.dtype}, not of numbers")
        if len(column) and column.isna().all():
            raise UserError(
                f"its column {name} has no number: take it out; it may be a comma at the end of "
                "each line"
            )
    is_single = (frame.dtypes == np.float32).all()  # half the memory, and no digit lost
    return as_columns(frame.to_numpy(np.float32 if is_single else np.float64)), labels


def read_parquet(path: pathlib.Path, step_label: str) -> Any:
    """Return a .parquet as a frame of its numbers and labels; an index that pandas wrote is not.

    The types of the columns, and how large they become, are known before any of them is read.
    """
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        raise UserError(f"a .parquet is read by pyarrow: pip install pyarrow ({error})") from None
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
                raise UserError(f"its column {name} is of {kind}, not of numbers")
        groups = map(size.row_group, range(size.num_row_groups))
        num_bytes = max(8 * size.num_rows * len(fields), sum(g.total_byte_size for g in groups))
        check_size(path, num_bytes)
        table = file.read([field.name for field in fields])
    return table.to_pandas(ignore_metadata=True)


def read_csv(path: pathlib.Path, **options: Any) -> Any:
    """Return a .csv as a frame whose columns are the names of its first line.

    A comma at the end of each row alone is passed over.
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
                "its rows have more fields than its first line has names: are there decimal "
                "commas, or a name too few?"
            ) from None


def check_comments(path: pathlib.Path, separator: str) -> None:
    """Check that no comments precede the names of the columns of an unreadable table."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = list(itertools.islice(file, NUM_FIRST_LINES))
    number = len(list(itertools.takewhile(lambda line: line.startswith(COMMENT_MARKS), lines)))
    widest = max(range(len(lines)), key=lambda i: lines[i].count(separator), default=0)
    names = lines[widest].split(separator) if lines else []
    if all(re.match(r"\s*[^\d\s.+-]", name) for name in names):
        number = max(number, widest)
    if number:
        raise UserError(
            f"its first {number} line(s) are comments, not the names of the columns: remove them"
        )


def check_header(path: pathlib.Path) -> None:
    """Check that the first line of a .csv has names, which are taken off, and no numbers."""
    import pandas as pd

    # The text: a frame gives a second column 0.0 the name 0.0.1.
    how = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
    names = pd.read_csv(path, sep=SEPARATORS[path.suffix.lower()], **how).to_numpy()[0]
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
