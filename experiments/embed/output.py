"""Where features go: an .npz, an .arrow, or a .npy for each file and a times.json."""

import contextlib
import pathlib
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from cpc.files import replacing, write_json
from cpc.types import UserError

TIMES = "times_seconds"

#: write(name, features)
Write: TypeAlias = Callable[[str, np.ndarray], None]


@contextlib.contextmanager
def open_output(output: str, frame_seconds: float | None) -> Iterator[Write]:
    """write(name, features) into what the ending of `output` says; a file is whole or not there."""
    path = pathlib.Path(output).expanduser()
    forms = {".npz": write_npz, ".arrow": write_arrow}
    if path.suffix in forms:
        with replacing(path) as part, forms[path.suffix](part, frame_seconds) as write_one:
            yield write_one
        return
    if path.suffix and not output.endswith("/") and not path.is_dir():
        raise UserError(f"--output is {output}: it ends in .npz or .arrow, or is a folder/")
    path.mkdir(parents=True, exist_ok=True)

    def write(name: str, features: np.ndarray) -> None:
        with replacing(path / f"{name}.npy") as part, part.open("wb") as file:
            np.save(file, features)

    yield write
    if frame_seconds:  # ABX tools read the .npy files alone
        times = {"frame_seconds": frame_seconds, "first_seconds": frame_seconds / 2}
        write_json(path / "times.json", times)


@contextlib.contextmanager
def write_npz(path: pathlib.Path, frame_seconds: float | None) -> Iterator[Write]:
    """An array a file, and the middles of the frames of the longest under `times_seconds`.

    A file of that name has its features under `times_seconds.features`.
    """
    longest = 0
    with zipfile.ZipFile(path, "w") as archive:

        def write(name: str, features: np.ndarray) -> None:
            nonlocal longest
            longest = max(longest, len(features))
            add(f"{name}.features" if name == TIMES and frame_seconds else name, features)

        def add(name: str, array: np.ndarray) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array))

        yield write
        if frame_seconds:
            add(TIMES, frame_times(longest, frame_seconds))


@contextlib.contextmanager
def write_arrow(path: pathlib.Path, frame_seconds: float | None) -> Iterator[Write]:
    """Rows of name, features (a list of vectors; of images the grid's, row by row) and times."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UserError(
            "an .arrow file is written by the package pyarrow, which is missing: pip install "
            "pyarrow, or choose .npz"
        ) from error
    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(name: str, features: np.ndarray) -> None:
            nonlocal writer
            width = features.shape[-1]
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), width)
            columns = {
                "name": pa.array([name]),
                "features": pa.ListArray.from_arrays([0, len(vectors)], vectors),
            }
            if frame_seconds:
                columns[TIMES] = pa.array([frame_times(len(features), frame_seconds)])
            batch = pa.record_batch(columns)
            if writer is None:
                writer = stack.enter_context(pa.ipc.new_file(str(path), batch.schema))
            writer.write_batch(batch)

        yield write


def frame_times(num: int, frame_seconds: float) -> np.ndarray:
    """The middles of frames.

    >>> frame_times(3, 0.01).tolist()
    [0.005, 0.015, 0.025]
    """
    return (np.arange(num) + 0.5) * frame_seconds
