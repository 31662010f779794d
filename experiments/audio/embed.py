"""Features of recordings of any length, rate and number of channels."""

import functools
import pathlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cpc import models
from cpc.data import SAMPLE_RATE_HZ, TARGET_RMS, prefetch
from cpc.data.audio_file import (
    AUDIO_SUFFIXES,
    COMPANION_SUFFIXES,
    AudioFile,
    choose_channel,
    open_audio,
    read_samples,
    stream_mono,
)
from cpc.data.levels import Levels, measure_levels, to_int16
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
    recordings = open_recordings(
        list_files(root, AUDIO_SUFFIXES, skipped, COMPANION_SUFFIXES), skipped
    )
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
                whole, end = read_scaled(recording, rms), (length + after) * stride
                # What is no whole frame may lie beyond, where no frame that is kept sees it.
                kept.append((recording, len(whole), continue_mirrored(whole[:end], end)))
        return kept, failed

    for kept, failed in prefetch(read_group, 0, len(groups)):
        skipped += failed
        if not kept:
            continue
        arrays = np.asarray(embed(pretrained.variables, fill([x for *_, x in kept])), np.float32)
        for (recording, size, _), array in zip(kept, arrays, strict=False):
            yield recording.name, array[: max(1, size // stride)], hours(recording)
    for recording in long:
        with skip(recording.name, skipped):
            yield recording.name, embed_long(pretrained, recording, is_context), hours(recording)


def embed_long(pretrained: models.Pretrained, recording: Recording, is_context: bool) -> np.ndarray:
    """Z or c of a recording that is read a chunk at a time."""
    module: Any = pretrained.module
    file = choose_channel(recording.file)
    levels = measure_levels(stream_mono(file, note_of(recording)))
    gain, size = gain_to(pretrained.input["rms"], levels), levels.num_samples
    report_levels(recording, levels)
    if size < file.num_samples:  # then nothing is read beyond
        file = file._replace(num_frames=size * file.rate_hz // SAMPLE_RATE_HZ)

    def read(start: int, stop: int) -> np.ndarray:
        samples = read_samples(file, start, min(stop, size), levels).astype(np.float32) / 32768
        return continue_mirrored(samples * gain, stop - start)

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


def read_scaled(recording: Recording, rms: float | None) -> np.ndarray:
    """A whole recording, as far as it decodes, at the loudness that the model was trained at."""
    parts = list(stream_mono(recording.file, note_of(recording)))
    levels = measure_levels(parts)
    report_levels(recording, levels)
    samples = np.concatenate([to_int16(part, levels) for part in parts])
    return samples.astype(np.float32) / 32768 * gain_to(rms, levels)


def note_of(recording: Recording) -> Callable[[str], None]:
    """Return a function that prints a sentence on a recording."""
    return lambda sentence: print(f"{recording.name}: {sentence}")


def report_levels(recording: Recording, levels: Levels) -> None:
    """Print how a recording is altered, and whether fewer samples decode than its header says."""
    note, promised = note_of(recording), recording.file.num_samples
    if not levels.rms:
        note("kept, but it is silent: all its samples are equal")
    for sentence in levels.describe():
        note(sentence)
    if levels.num_samples < promised:
        there = f"{levels.num_samples:,} of {promised:,}"
        note(f"kept, but {there} samples decode: it is damaged or cut short")


def gain_to(rms: float | None, levels: Levels) -> np.float32:
    """Factor that brings a recording with these levels, in 16 bits, to this root mean square."""
    if rms is None:
        return np.float32(1)
    own = levels.rms / max(levels.peak, 1.0)
    return gains(np.asarray([own], np.float32))[0] * np.float32(rms / TARGET_RMS)
