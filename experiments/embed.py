r"""Compute features of recordings, images, series or texts with the model of a run.

    cpc embed --workdir runs/voices --input /my/recordings --output features.npz
    cpc embed --weights team/voices --input /my/recordings --output features.npz --pool mean

--input is a file or a folder. Recordings may have any length, sample rate and number of channels.
The suffix of --output selects the format. An .npz file contains one array per input file and the
array times_seconds; an input of that name is stored as times_seconds.features. An .arrow file
contains one row per input file. A folder contains one .npy (frames, width) per input file, in the
directory tree of the input, as ABX tools expect; its times.json contains the time between frames
and the middle of the first frame. --weights is a run, an exported folder, a repository of the hub,
or a checkpoint of CPC_audio. --pool mean writes one vector per file, the mean over its frames.

--features names layers: z1, z2, ... of the encoder (z1 of audio has a frame every 5 samples), c1,
... of the context network, z for the last z layer and c for the last c layer; a stage of a ResNet
counts as a layer. A list such as z1,z2,c, or all, writes several layers in one pass, under the
names z1/NAME, z2/NAME, .... codes selects the code indices of quantized latents, as one column.
"""

import contextlib
import pathlib
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from absl import flags

from cpc import models
from cpc.files import replacing, write_json
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.kinds.registry import check_input, read_model
from experiments.training.problem import Embedding

TIMES = "times_seconds"

#: Features of a file by layer.
Features: TypeAlias = dict[str, np.ndarray]
#: Function write(name, features) that writes one file's features.
Write: TypeAlias = Callable[[str, Features], None]
#: Seconds between each layer's frames, or None if rows are not frames in time.
Seconds: TypeAlias = Mapping[str, float] | None


@contextlib.contextmanager
def open_output(output: str, layers: Sequence[str], seconds: Seconds) -> Iterator[Write]:
    """Yield a function that writes one file's features in the format of `output`'s suffix.

    If there are several layers, names get prefixes: z1/NAME, z2/NAME. Writing is atomic.
    """
    path = pathlib.Path(output).expanduser()
    forms = {".npz": write_npz, ".arrow": write_arrow}
    if path.suffix in forms:
        with replacing(path) as part, forms[path.suffix](part, layers, seconds) as write_one:
            yield write_one
        return
    if path.suffix and not output.endswith("/") and not path.is_dir():
        raise UserError(f"--output must end with .npz, .arrow or / (got {output})")
    path.mkdir(parents=True, exist_ok=True)
    prefixes = prefix_layers(layers)

    def write(name: str, features: Features) -> None:
        for layer, prefix in prefixes.items():
            with replacing(path / f"{prefix}{name}.npy") as part, part.open("wb") as file:
                np.save(file, features[layer])

    yield write
    for layer, frame in (seconds or {}).items():  # ABX tools ignore this file
        times = {"frame_seconds": frame, "first_seconds": frame / 2}
        write_json(path / f"{prefixes[layer]}times.json", times)


def prefix_layers(layers: Sequence[str]) -> dict[str, str]:
    """Return the prefix that each layer adds to names, which is "" for a single layer.

    >>> prefix_layers(["c"]), prefix_layers(["z1", "c"])
    ({'c': ''}, {'z1': 'z1/', 'c': 'c/'})
    """
    return {layer: f"{layer}/" if len(layers) > 1 else "" for layer in layers}


@contextlib.contextmanager
def write_npz(path: pathlib.Path, layers: Sequence[str], seconds: Seconds) -> Iterator[Write]:
    """Write one array per file and layer, and the midpoints of frames as `times_seconds`."""
    longest = dict.fromkeys(layers, 0)
    prefixes = prefix_layers(layers)
    with zipfile.ZipFile(path, "w") as archive:

        def write(name: str, features: Features) -> None:
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
    """Write one row per file, with its name, features and times.

    Features are a list of vectors, in row-major order for images.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UserError("an .arrow --output needs pyarrow: run pip install pyarrow") from error
    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(name: str, features: Features) -> None:
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
    """Return the midpoint of each frame in seconds.

    >>> frame_times(3, 0.01).tolist()
    [0.005, 0.015, 0.025]
    """
    return (np.arange(num) + 0.5) * frame_seconds


def run(
    weights: str | None,
    source: str | None,
    output: str | None,
    features: str = "c",
    step: str | None = None,
    pool: str = "none",
    device: str = "auto",
) -> None:
    """Embed all files in `source`, write their features, and print the speed."""
    if not (weights and source and output):
        raise UserError(
            "--weights (or --workdir), --input and --output are required, e.g. --weights "
            "runs/voices --input recordings --output features.npz"
        )
    root = pathlib.Path(source).expanduser()
    cluster.start(device)
    pretrained = read_model(weights, step)
    names = parse_layers(features, pretrained.module)
    if pool == "mean" and "codes" in names:
        raise UserError("--features codes are indices, which have no mean: remove --pool mean")
    find_codes = code_finder(pretrained) if "codes" in names else None
    layers = tuple(dict.fromkeys("z" if name == "codes" else name for name in names))
    skipped: list[tuple[str, str]] = []
    embedding = check_input(pretrained, weights).embed_files(pretrained, root, layers, skipped)
    seconds = embedding.frame_seconds
    if find_codes:
        seconds = seconds and {"codes": seconds["z"], **seconds}
        embedding = change(embedding, lambda made: {**made, "codes": find_codes(made["z"])})
    seconds = seconds and {name: seconds[name] for name in names}
    if pool == "mean":
        seconds, embedding = None, change(embedding, average_frames)
    with open_output(output, names, seconds) as write:
        write_all(embedding, write, skipped, root, print)
    print(f"features: {output}")


def change(embedding: Embedding, function: Callable[[Features], Features]) -> Embedding:
    """Apply a function to the features of each file."""
    found = ((name, function(made), amount) for name, made, amount in embedding.features)
    return embedding._replace(features=found)


def average_frames(made: Features) -> Features:
    """Return each layer's mean over frames."""
    rows = {layer: x.reshape(-1, x.shape[-1]) for layer, x in made.items()}
    return {layer: x.mean(axis=0, dtype=np.float64).astype("f4") for layer, x in rows.items()}


def parse_layers(features: str, module: Any) -> tuple[str, ...]:
    """Return the layer names in a comma-separated list, where "all" selects all numbered layers."""
    known = models.layer_depths(module)
    if features == "all":
        return tuple(name for name in known if name not in ("z", "c"))
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in features.split(",")))))
    unknown = [name for name in names if name not in known and name != "codes"]
    if unknown or not names:
        wrong = (unknown or [features])[0]
        raise UserError(f"--features must be some of {', '.join(known)}, or all (got {wrong!r})")
    return names


def code_finder(pretrained: models.Pretrained) -> Callable[[Any], np.ndarray]:
    """Return a function that maps quantized latents (t, d) to code indices (t, 1)."""
    encoder = getattr(pretrained.module, "encoder", None)
    if not isinstance(encoder, models.QuantizedEncoder):
        raise UserError("--features codes needs a model with quantized latents: remove codes")
    own = models.part_of(pretrained.variables, "encoder")
    return lambda z: np.asarray(encoder.find_codes(own, jnp.asarray(z)), np.float32)[:, None]


def write_all(
    embedding: Embedding,
    write: Write,
    skipped: list[tuple[str, str]],
    root: pathlib.Path,
    say: Callable[[str], Any],
) -> None:
    """Write the features of all files, and report progress and skipped files."""
    total, unit = embedding.total, embedding.unit
    begin = last = time.perf_counter()
    done, count = 0.0, 0
    for name, features, amount in embedding.features:
        write(name, features)
        done, count, now = done + amount, count + 1, time.perf_counter()
        if now > last + 10:
            last, rate = now, done / (now - begin)
            say(
                f"{done:,.4g} of {total:,.4g} {unit}, {rate:.3g} {unit}/s, "
                f"{max(0.0, total - done) / rate:,.0f} s left"
            )
    for name, reason in skipped:
        say(f"skipped {name}: {reason}")
    if not count:
        reason = skipped[0][1] if skipped else "none has a feature"
        raise UserError(f"all files in {root} are unreadable ({reason}): check --input")
    seconds = time.perf_counter() - begin
    say(
        f"{count:,} files, {len(skipped):,} skipped, {done:,.4g} {unit} in {seconds:.1f} s: "
        f"{done / seconds:.3g} {unit}/s"
    )


if __name__ == "__main__":
    INPUT = flags.DEFINE_string("input", None, "File, or folder with files at any depth.")
    OUTPUT = flags.DEFINE_string("output", None, "Output: features.npz, features.arrow or folder/.")
    LAYER = flags.DEFINE_string(
        "features", "c", "c (contexts), z (latents), codes, all, or layers such as z1,z2,c."
    )
    WEIGHTS = flags.DEFINE_string(
        "weights", None, "Run, exported folder, hub repository or CPC_audio checkpoint."
    )
    POOL = flags.DEFINE_enum("pool", "none", ["none", "mean"], "Features per frame or per file.")
    STEP = cli.define_step()
    cli.run(
        lambda: run(
            WEIGHTS.value or cli.WORKDIR.value, INPUT.value, OUTPUT.value, LAYER.value, STEP.value,
            POOL.value, cli.DEVICE.value,
        )
    )  # fmt: skip
