"""Features of recordings of any length, rate and number of channels."""

import functools
import pathlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cpc import models
from cpc.data import SAMPLE_RATE_HZ, TARGET_RMS, prefetch
from cpc.data.audio_file import AUDIO_SUFFIXES, AudioFile, open_audio, read_samples, stream_samples
from cpc.data.recordings import gains
from cpc.evaluate.embeddings import continue_mirrored
from experiments.embedding import embed_batch, fill, list_files, skip
from experiments.problem import Embedding

#: Longer recordings are embedded in chunks of so many samples: 30 s, and 200 MB in a layer of 512.
CHUNK_SAMPLES = 480_000
#: Shorter ones share a batch with those that are at most a quarter longer, of so many samples.
BATCH_SAMPLES = 1_920_000


class Recording(NamedTuple):
    """A file and the name that its features get."""

    name: str
    file: AudioFile


def embed_files(
    pretrained: models.Pretrained,
    root: pathlib.Path,
    is_context: bool,
    skipped: list[tuple[str, str]],
) -> Embedding:
    """Return the features of every recording below a folder, on their way."""
    module: Any = pretrained.module
    recordings = open_recordings(list_files(root, AUDIO_SUFFIXES, skipped), skipped)
    return Embedding(
        features=embed_recordings(pretrained, recordings, is_context, skipped),
        total=sum(hours(recording) for recording in recordings),
        unit="h audio",
        frame_seconds=module.encoder.stride / pretrained.input["sample_rate_hz"],
    )


def open_recordings(
    files: dict[str, pathlib.Path], skipped: list[tuple[str, str]]
) -> list[Recording]:
    """The headers of the files, without those that are no audio."""
    recordings = []
    for name, path in files.items():
        with skip(name, skipped):
            recordings.append(Recording(name, open_audio(path)))
            if what := recordings[-1].file.missing:
                print(f"{name}: {what}")
    return recordings


def hours(recording: Recording) -> float:
    """Length of a recording."""
    return recording.file.num_samples / SAMPLE_RATE_HZ / 3600


def embed_recordings(
    pretrained: models.Pretrained,
    recordings: Sequence[Recording],
    is_context: bool,
    skipped: list[tuple[str, str]],
) -> Iterator[tuple[str, np.ndarray, float]]:
    """Short recordings in batches of like length, long ones in chunks; max(1, s // stride) frames.

    What a frame sees beyond the end of its recording is the recording's mirror image.
    """
    module: Any = pretrained.module
    stride, rms = module.encoder.stride, pretrained.input["rms"]
    _, after = module.encoder.frames_around
    embed = jax.jit(functools.partial(embed_batch, module, is_context))
    groups, long = group_by_length(recordings, stride)

    def read_group(number: int):
        """Decoded by threads while the device works."""
        length, members = groups[number]
        kept, failed = [], []
        for recording in members:
            with skip(recording.name, failed):
                whole, end = read_scaled(recording.file, rms), (length + after) * stride
                # What is no whole frame may lie beyond, where no frame that is kept sees it.
                kept.append((recording, len(whole), continue_mirrored(whole[:end], end)))
        return kept, failed

    for kept, failed in prefetch(read_group, 0, len(groups)):
        skipped += failed
        if not kept:
            continue
        arrays = np.asarray(embed(pretrained.variables, fill([x for *_, x in kept])), np.float32)
        for (recording, size, _), array in zip(kept, arrays, strict=False):
            say_missing(recording, size)
            yield recording.name, array[: max(1, size // stride)], hours(recording)
    for recording in long:
        with skip(recording.name, skipped):
            yield recording.name, embed_long(pretrained, recording, is_context), hours(recording)


def embed_long(pretrained: models.Pretrained, recording: Recording, is_context: bool) -> np.ndarray:
    """Z or c of a recording that is read a chunk at a time."""
    module: Any = pretrained.module
    file = recording.file
    gain, size = measure_gain(file, pretrained.input["rms"])
    say_missing(recording, size)
    if size < file.num_samples:  # then nothing is read beyond
        file = file._replace(num_frames=size * file.rate_hz // SAMPLE_RATE_HZ)

    def read(start: int, stop: int) -> np.ndarray:
        samples = read_samples(file, start, min(stop, size)).astype(np.float32) / 32768 * gain
        return continue_mirrored(samples, stop - start)

    stride = module.encoder.stride
    frames, chunk = max(1, size // stride), CHUNK_SAMPLES // stride
    parts = models.stream_latents(module, pretrained.variables, read, frames, chunk)
    if is_context:
        parts = models.stream_contexts(module, pretrained.variables, parts)
    return np.concatenate([np.asarray(part[0], np.float32) for part in parts])[:frames]


def group_by_length(
    recordings: Sequence[Recording], stride: int
) -> tuple[list[tuple[int, list[Recording]]], list[Recording]]:
    """(frames, recordings that are filled up to them) of each batch, and those too long for one."""
    lengths, most = [max(1, 2560 // stride)], max(1, CHUNK_SAMPLES // stride)
    while lengths[-1] < most:
        lengths.append(min(most, max(lengths[-1] + 1, lengths[-1] * 5 // 4)))
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
    """A whole recording, as far as it decodes, at the loudness that the model was trained at."""
    samples = np.concatenate(list(stream_samples(file))).astype(np.float32) / 32768
    return samples * gain_to(rms, float(np.mean(samples.astype(np.float64) ** 2)))


def measure_gain(file: AudioFile, rms: float | None) -> tuple[np.float32, int]:
    """The factor that `read_scaled` has, and how many samples decode, by reading all in parts."""
    total, size = 0.0, 0
    for samples in stream_samples(file):
        total += float(np.sum((samples.astype(np.float64) / 32768) ** 2))
        size += len(samples)
    return gain_to(rms, total / max(size, 1)), size


def say_missing(recording: Recording, size: int) -> None:
    """Say that fewer samples decode than the header promises, as of a damaged MP3."""
    promised = recording.file.num_samples
    if size < promised:
        there = f"{size:,} of {promised:,}"
        print(f"{recording.name}: kept, but {there} samples decode: it is damaged or cut short")


def gain_to(rms: float | None, power: float) -> np.float32:
    """Factor that brings a recording of this mean square to this root mean square."""
    if rms is None:
        return np.float32(1)
    return gains(np.asarray([power**0.5], np.float32))[0] * np.float32(rms / TARGET_RMS)
