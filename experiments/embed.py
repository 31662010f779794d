r"""Features of a folder of recordings or pictures, by the model of a run.

    python -m experiments.embed --workdir runs/voices --input /my/recordings --output features.npz

--output says the form: .npz (name -> array, and times_seconds), .arrow (a row a file), or a folder
(a .npy a file, in the input's tree, frames by width, as ABX tools expect; times.json has the
frames' distance and the middle of the first). Recordings are of any length, rate and number of
channels. --workdir can also be a folder that was exported. --features is c or z, or any layer
before: z1, z2, ... of the encoder (z1 of audio has a frame each 5 samples), c1, ... of the context;
of a ResNet a stage counts as a layer.
"""

import contextlib
import functools
import os
import pathlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from cpc import models
from cpc.data import SAMPLE_RATE_HZ, TARGET_RMS, prefetch
from cpc.data.audio_file import AUDIO_SUFFIXES, AudioFile, open_audio, read_samples
from cpc.data.image_file import IMAGE_SUFFIXES, decode_image
from cpc.data.recordings import gains
from cpc.evaluate.embeddings import continue_mirrored
from cpc.types import UserError
from experiments import export, image, launch
from experiments.embed_output import Write, open_output

#: Longer recordings are embedded in chunks of so many samples: 30 s, and 200 MB in a layer of 512.
CHUNK_SAMPLES = 480_000
#: Shorter ones share a batch with those that are at most a quarter longer, of so many samples.
BATCH_SAMPLES = 1_920_000
BATCH_PICTURES = 64
#: Of a long recording that is measured.
PART_SAMPLES = 2**23

#: (name, features, what was read in the unit of the progress line)
Embedded = Iterator[tuple[str, np.ndarray, float]]


class Recording(NamedTuple):
    """A file and the name that its features get."""

    name: str
    file: AudioFile


def run(
    workdir: str | None,
    source: str | None,
    output: str | None,
    features: str = "c",
    step: int | None = None,
    device: str = "auto",
) -> None:
    """Check what was asked for, embed every file, and say how fast it went."""
    if not (workdir and source and output):
        raise UserError("give --workdir of a run, --input of a folder, and --output: see --help")
    root = pathlib.Path(source).expanduser()
    launch.start(device)
    pretrained = read_model(pathlib.Path(workdir).expanduser(), step)
    module, variables = models.end_at(pretrained.module, pretrained.variables, features)
    pretrained = pretrained._replace(module=module, variables=variables)
    frame_seconds = None
    if pretrained.input["kind"] == "audio":
        frame_seconds = module.encoder.stride / pretrained.input["sample_rate_hz"]
    with open_output(output, frame_seconds) as write:
        embed_folder(pretrained, root, write, features.startswith("c"), print)
    print(f"features: {output}")


def read_model(folder: pathlib.Path, step: int | None) -> models.Pretrained:
    """The model of a run's checkpoint, or of a folder that was exported, the run's own too."""
    exported = folder / models.EXPORTED
    if not any(folder.glob("checkpoints/*")) and (exported / models.WEIGHTS).exists():
        folder = exported
    if (folder / models.WEIGHTS).exists():
        if step is not None:
            raise UserError(f"{folder} was exported and has one step alone: leave out --step")
        return models.load_pretrained(folder)
    pretrained = export.read_run(folder, step)
    return pretrained._replace(variables=jax.tree.map(jnp.asarray, pretrained.variables))


def embed_folder(
    pretrained: models.Pretrained,
    root: pathlib.Path,
    write: Write,
    is_context: bool,
    say: Callable[[str], Any],
) -> list[tuple[str, str]]:
    """Embed every file below `root`; returns the names that were skipped, and why."""
    skipped: list[tuple[str, str]] = []
    begin = last = time.perf_counter()
    if pretrained.input["kind"] == "audio":
        recordings = open_recordings(list_files(root, AUDIO_SUFFIXES), skipped)
        total = sum(hours(recording) for recording in recordings)
        unit = "h audio"
        embedded = embed_recordings(pretrained, recordings, is_context, skipped)
    else:
        files = list_files(root, IMAGE_SUFFIXES)
        total, unit = float(len(files)), "pictures"
        embedded = embed_pictures(pretrained, files, is_context, skipped)
    done, count = 0.0, 0
    for name, array, amount in embedded:
        write(name, np.asarray(array, np.float32))
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
        raise UserError(f"no file in {root} can be read: {skipped[0][1]}")
    seconds = time.perf_counter() - begin
    say(
        f"{count:,} files, {len(skipped):,} skipped, {done:,.4g} {unit} in {seconds:.1f} s: "
        f"{done / seconds:.3g} {unit}/s"
    )
    return skipped


def list_files(root: pathlib.Path, suffixes: Iterable[str]) -> dict[str, pathlib.Path]:
    """Path below `root` without its ending, or with it where two would be one -> file."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: give a folder with --input")
    below = sorted(
        pathlib.Path(folder, name).relative_to(root)
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if pathlib.Path(name).suffix.lower() in suffixes and not name.startswith(".")
    )
    if not below:
        endings = ", ".join(sorted(suffix[1:] for suffix in suffixes))
        raise UserError(f"nothing to embed in {root}: looked for {endings} files at any depth")
    stems = [path.with_suffix("").as_posix() for path in below]
    count = Counter(stems)
    return {
        stem if count[stem] == 1 else path.as_posix(): root / path
        for stem, path in zip(stems, below, strict=True)
    }


# Recordings


def open_recordings(
    files: dict[str, pathlib.Path], skipped: list[tuple[str, str]]
) -> list[Recording]:
    """The headers of the files, without those that are no audio."""
    recordings = []
    for name, path in files.items():
        with skip(name, skipped):
            recordings.append(Recording(name, open_audio(path)))
    return recordings


@contextlib.contextmanager
def skip(name: str, skipped: list[tuple[str, str]]) -> Iterator[None]:
    """What cannot be read is listed, and the next file is next."""
    try:
        yield
    except (UserError, OSError) as error:
        skipped.append((name, str(error)))


def hours(recording: Recording) -> float:
    """Length of a recording."""
    return recording.file.num_samples / SAMPLE_RATE_HZ / 3600


def embed_recordings(
    pretrained: models.Pretrained,
    recordings: Sequence[Recording],
    is_context: bool,
    skipped: list[tuple[str, str]],
) -> Embedded:
    """Short recordings in batches of like length, long ones in chunks; max(1, s // stride) frames.

    What a frame sees beyond the end of its recording is the recording's mirror image.
    """
    module: Any = pretrained.module
    stride, rms = module.encoder.stride, pretrained.input["rms"]
    _, after = models.frames_around(module.encoder)
    embed = jax.jit(functools.partial(embed_batch, module, is_context))
    groups, long = group_by_length(recordings, stride)

    def read_group(number: int):
        """Decoded by threads while the device works."""
        length, members = groups[number]
        kept, failed = [], []
        for recording in members:
            with skip(recording.name, failed):
                whole = read_scaled(recording.file, rms)
                kept.append((recording, continue_mirrored(whole, (length + after) * stride)))
        return kept, failed

    for kept, failed in prefetch(read_group, 0, len(groups)):
        skipped += failed
        if not kept:
            continue
        arrays = np.asarray(embed(pretrained.variables, fill([x for _, x in kept])), np.float32)
        for (recording, _), array in zip(kept, arrays, strict=False):
            yield recording.name, array[: num_frames(recording, stride)], hours(recording)
    for recording in long:
        with skip(recording.name, skipped):
            yield recording.name, embed_long(pretrained, recording, is_context), hours(recording)


def embed_batch(module: Any, is_context: bool, variables: Any, x: Any) -> Any:
    """Z or c of a batch of waveforms."""
    if is_context:
        return module.apply(variables, x, method="embed")[1]
    return module.apply(variables, x, method="encode")


def embed_long(pretrained: models.Pretrained, recording: Recording, is_context: bool) -> np.ndarray:
    """Z or c of a recording that is read a chunk at a time."""
    module: Any = pretrained.module
    file, size = recording.file, recording.file.num_samples
    gain = measure_gain(file, pretrained.input["rms"])

    def read(start: int, stop: int) -> np.ndarray:
        samples = read_samples(file, start, min(stop, size)).astype(np.float32) / 32768 * gain
        return continue_mirrored(samples, stop - start)

    stride = module.encoder.stride
    frames, chunk = num_frames(recording, stride), CHUNK_SAMPLES // stride
    parts = models.stream_latents(module, pretrained.variables, read, frames, chunk)
    if is_context:
        parts = models.stream_contexts(module, pretrained.variables, parts)
    return np.concatenate([np.asarray(part[0], np.float32) for part in parts])[:frames]


def group_by_length(
    recordings: Sequence[Recording], stride: int
) -> tuple[list[tuple[int, list[Recording]]], list[Recording]]:
    """(frames, recordings that are filled up to them) of each batch, and those too long for one."""
    lengths, most = [2560 // stride], CHUNK_SAMPLES // stride
    while lengths[-1] < most:
        lengths.append(min(most, lengths[-1] * 5 // 4))
    by_length = defaultdict(list)
    long = []
    for recording in recordings:
        frames = num_frames(recording, stride)
        if frames > most:
            long.append(recording)
        else:
            by_length[lengths[int(np.searchsorted(lengths, frames))]].append(recording)
    groups = []
    for length, members in sorted(by_length.items()):
        rows = 2 ** int(np.log2(max(1, BATCH_SAMPLES // stride // length)))
        groups += [(length, members[i : i + rows]) for i in range(0, len(members), rows)]
    return groups, long


def num_frames(recording: Recording, stride: int) -> int:
    """Frames of a recording, one each `stride` samples."""
    return max(1, recording.file.num_samples // stride)


def read_scaled(file: AudioFile, rms: float | None) -> np.ndarray:
    """A whole recording at the loudness that the model was trained at."""
    samples = read_samples(file, 0, file.num_samples).astype(np.float32) / 32768
    return samples * gain_to(rms, float(np.mean(samples.astype(np.float64) ** 2)))


def measure_gain(file: AudioFile, rms: float | None) -> np.float32:
    """The factor that `read_scaled` has, by reading everything once, in parts."""
    if rms is None:
        return np.float32(1)
    total = 0.0
    for start in range(0, file.num_samples, PART_SAMPLES):
        samples = read_samples(file, start, min(start + PART_SAMPLES, file.num_samples))
        total += float(np.sum((samples.astype(np.float64) / 32768) ** 2))
    return gain_to(rms, total / file.num_samples)


def gain_to(rms: float | None, power: float) -> np.float32:
    """Factor that brings a recording of this mean square to this root mean square."""
    if rms is None:
        return np.float32(1)
    return gains(np.asarray([power**0.5], np.float32))[0] * np.float32(rms / TARGET_RMS)


# Pictures


def embed_pictures(
    pretrained: models.Pretrained,
    files: dict[str, pathlib.Path],
    is_context: bool,
    skipped: list[tuple[str, str]],
) -> Embedded:
    """Z or c over each picture's grid of patches (i, j, width), prepared as in evaluation."""
    config: Any = ConfigDict(pretrained.about["config"])
    named = list(files.items())

    def read_batch(number: int):
        kept, failed = [], []
        for name, path in named[number * BATCH_PICTURES : (number + 1) * BATCH_PICTURES]:
            with skip(name, failed):
                size, channels = config.data.size, config.data.channels
                pixels = decode_image(path.read_bytes(), str(path), size=size, channels=channels)
                kept.append((name, pixels))
        return kept, failed

    @jax.jit
    def embed(variables, pixels):
        x = image.prepare(config, {"x": pixels}, jax.random.key(0), False)["x"]
        return embed_batch(pretrained.module, is_context, variables, x)

    for kept, failed in prefetch(read_batch, 0, -(-len(named) // BATCH_PICTURES)):
        skipped += failed
        if not kept:
            continue
        grids = np.asarray(embed(pretrained.variables, fill([x for _, x in kept])), np.float32)
        for (name, _), grid in zip(kept, grids, strict=False):
            yield name, grid, 1.0


def fill(rows: list[np.ndarray]) -> np.ndarray:
    """A batch of a power of two of rows, so that there are few shapes; the last one repeated.

    >>> fill([np.array([1]), np.array([2]), np.array([3])])[:, 0].tolist()
    [1, 2, 3, 3]
    """
    return np.stack([*rows, *[rows[-1]] * (2 ** (len(rows) - 1).bit_length() - len(rows))])


if __name__ == "__main__":
    INPUT = flags.DEFINE_string("input", None, "Folder of recordings or pictures, at any depth.")
    OUTPUT = flags.DEFINE_string("output", None, "features.npz, features.arrow, or a folder/.")
    LAYER = flags.DEFINE_string(
        "features", "c", "c, the contexts; z, the latents; or a layer, such as z2."
    )
    STEP = flags.DEFINE_integer("step", None, "Checkpoint of the run; the newest by default.")
    launch.run(
        lambda: run(
            launch.WORKDIR.value,
            INPUT.value,
            OUTPUT.value,
            LAYER.value,
            STEP.value,
            launch.DEVICE.value,
        )
    )
