"""Files of features: an .npz, an .arrow, or a folder with one .npy per file and a times.json."""

import contextlib
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from cpc.files import replacing, write_json
from cpc.types import UserError

TIMES = "times_seconds"

#: write(name, features by layer)
Write: TypeAlias = Callable[[str, Mapping[str, np.ndarray]], None]
#: Seconds between the frames of each layer; None if rows are not times.
Seconds: TypeAlias = Mapping[str, float] | None


@contextlib.contextmanager
def open_output(output: str, layers: Sequence[str], seconds: Seconds) -> Iterator[Write]:
    """Yield write(name, features by layer) for the form that the ending of `output` names.

    Names of several layers are prefixed: z1/NAME, z2/NAME. A file is complete or does not exist.
    """
    path = pathlib.Path(output).expanduser()
    forms = {".npz": write_npz, ".arrow": write_arrow}
    if path.suffix in forms:
        with replacing(path) as part, forms[path.suffix](part, layers, seconds) as write_one:
            yield write_one
        return
    if path.suffix and not output.endswith("/") and not path.is_dir():
        raise UserError(f"--output has no known form (got {output}): pass .npz, .arrow or folder/")
    path.mkdir(parents=True, exist_ok=True)
    prefixes = prefix_layers(layers)

    def write(name: str, features: Mapping[str, np.ndarray]) -> None:
        for layer, prefix in prefixes.items():
            with replacing(path / f"{prefix}{name}.npy") as part, part.open("wb") as file:
                np.save(file, features[layer])

    yield write
    for layer, frame in (seconds or {}).items():  # ABX tools read the .npy files alone
        times = {"frame_seconds": frame, "first_seconds": frame / 2}
        write_json(path / f"{prefixes[layer]}times.json", times)


def prefix_layers(layers: Sequence[str]) -> dict[str, str]:
    """Return the prefix of each layer's names: none if there is one layer alone.

    >>> prefix_layers(["c"]), prefix_layers(["z1", "c"])
    ({'c': ''}, {'z1': 'z1/', 'c': 'c/'})
    """
    return {layer: f"{layer}/" if len(layers) > 1 else "" for layer in layers}


@contextlib.contextmanager
def write_npz(path: pathlib.Path, layers: Sequence[str], seconds: Seconds) -> Iterator[Write]:
    """Write one array per file and layer, and the middles of frames under `times_seconds`.

    The features of a file of that name are `times_seconds.features`.
    """
    longest = dict.fromkeys(layers, 0)
    prefixes = prefix_layers(layers)
    with zipfile.ZipFile(path, "w") as archive:

        def write(name: str, features: Mapping[str, np.ndarray]) -> None:
            name = f"{name}.features" if name == TIMES and seconds else name
            for layer in layers:
                longest[layer] = max(longest[layer], len(features[layer]))
                add(f"{prefixes[layer]}{name}", features[layer])

        def add(name: str, array: np.ndarray) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array))

        yield write
        for layer, frame in (seconds or {}).items():
            add(f"{prefixes[layer]}{TIMES}", frame_times(longest[layer], frame))


@contextlib.contextmanager
def write_arrow(path: pathlib.Path, layers: Sequence[str], seconds: Seconds) -> Iterator[Write]:
    """Write rows of name, features (a list of vectors; the grid of an image by rows) and times.

    The columns of several layers are named z1, z1_times_seconds, z2, and so on.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UserError(
            "an .arrow file is written by the package pyarrow, which is missing: pip install "
            "pyarrow, or choose .npz"
        ) from error
    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(name: str, features: Mapping[str, np.ndarray]) -> None:
            nonlocal writer
            columns = {"name": pa.array([name])}
            for layer in layers:
                array = features[layer]
                column, times = (
                    (layer, f"{layer}_{TIMES}") if len(layers) > 1 else ("features", TIMES)
                )
                vectors = pa.FixedSizeListArray.from_arrays(
                    pa.array(array.reshape(-1)), array.shape[-1]
                )
                columns[column] = pa.ListArray.from_arrays([0, len(vectors)], vectors)
                if seconds:
                    columns[times] = pa.array([frame_times(len(array), seconds[layer])])
            batch = pa.record_batch(columns)
            if writer is None:
                writer = stack.enter_context(pa.ipc.new_file(str(path), batch.schema))
            writer.write_batch(batch)

        yield write


def frame_times(num: int, frame_seconds: float) -> np.ndarray:
    """Return the middles of frames.

    >>> frame_times(3, 0.01).tolist()
    [0.005, 0.015, 0.025]
    """
    return (np.arange(num) + 0.5) * frame_seconds
