"""Embedding of recordings with any length, sample rate and number of channels."""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cpc import models
from cpc.data import SAMPLE_RATE_HZ, audio_file, prefetch
from cpc.data.arrays import scale_parts
from cpc.data.recordings import Levels, measure_levels
from cpc.data.walk import Skipped
from experiments.training.problem import Embedding
from experiments.training.sequences import list_files, skip


class Recording(NamedTuple):
    """An open audio file, with the name of its saved features."""

    name: str
    file: audio_file.AudioFile

    def note(self, sentence: str) -> None:
        """Print a message about the recording."""
        print(f"{self.name}: {sentence}")


def embed_files(
    pretrained: models.Pretrained, path: pathlib.Path, names: Sequence[str], skipped: list[Skipped]
) -> Embedding:
    """Return the features of a recording, or of all recordings below a folder.

    A recording of s samples has max(1, s // stride) frames. Its mirror image pads its end.
    """
    layers = models.Layers(pretrained.module, pretrained.variables, names)
    files = list_files(path, audio_file.AUDIO_SUFFIXES, skipped, audio_file.COMPANION_SUFFIXES)
    recordings = open_recordings(files, skipped)
    rate_hz, rms = pretrained.input["sample_rate_hz"], pretrained.input["rms"]

    def embed() -> Iterator[tuple[str, dict[str, np.ndarray], float]]:
        lengths = [recording.file.num_samples for recording in recordings]
        groups, long = models.group_signals(lengths, layers.stride, layers.can_stream)

        def read_group(number: int):
            # Runs in threads, so that decoding overlaps with computation on the device.
            kept, failed = [], []
            for recording in (recordings[index] for index in groups[number][1]):
                with skip(recording.name, failed):
                    parts = list(audio_file.stream_mono(recording.file, recording.note))
                    levels = measure_levels(parts)
                    report_levels(recording, levels)
                    kept.append((recording, scale_parts(parts, levels, rms)))
            return kept, failed

        for number, (kept, failed) in enumerate(prefetch(read_group, 0, len(groups))):
            skipped.extend(failed)
            if kept:
                found = layers.embed_group([samples for _, samples in kept], groups[number][0])
                for (recording, _), features in zip(kept, found, strict=True):
                    yield recording.name, features, hours(recording)
        for recording in (recordings[index] for index in long):
            with skip(recording.name, skipped):
                yield recording.name, embed_long(layers, recording, rms), hours(recording)

    seconds = {name: stride / rate_hz for name, stride in layers.strides.items()}
    return Embedding(embed(), sum(map(hours, recordings)), "h audio", seconds)


def open_recordings(files: dict[str, pathlib.Path], skipped: list[Skipped]) -> list[Recording]:
    """Open the headers of audio files, skipping unreadable files."""
    recordings = []
    for name, path in files.items():
        with skip(name, skipped):
            recordings.append(Recording(name, audio_file.open_audio(path)))
            if what := recordings[-1].file.missing:
                recordings[-1].note(what)
    return recordings


def hours(recording: Recording) -> float:
    """Return a recording's length in hours."""
    return recording.file.num_samples / SAMPLE_RATE_HZ / 3600


def embed_long(
    layers: models.Layers, recording: Recording, rms: float | None
) -> dict[str, np.ndarray]:
    """Read a long recording in chunks and return its features."""
    file = audio_file.choose_channel(recording.file)
    levels = measure_levels(audio_file.stream_mono(file, recording.note))
    report_levels(recording, levels)

    def stream() -> Iterator[np.ndarray]:
        parts = audio_file.stream_mono(file, lambda sentence: None)
        return (scale_parts([part], levels, rms) for part in parts)

    return layers.embed_long(read_in_order(stream), levels.num_samples)


def read_in_order(stream: Callable[[], Iterator[np.ndarray]]) -> Callable[[int, int], np.ndarray]:
    """Return read(start, stop), which slices a stream of arrays like a single array.

    Reading backwards restarts the stream.

    >>> read = read_in_order(lambda: iter([np.arange(3.0), np.arange(3.0, 5.0)]))
    >>> [read(*span).tolist() for span in ((0, 2), (1, 4), (0, 9))]
    [[0.0, 1.0], [1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0, 4.0]]
    """
    parts, kept, first = stream(), np.zeros(0, np.float32), 0

    def read(start: int, stop: int) -> np.ndarray:
        nonlocal parts, kept, first
        if start < first:
            parts, kept, first = stream(), kept[:0], 0
        found, end = [kept], first + len(kept)
        while end < stop and (part := next(parts, None)) is not None:
            found.append(part)
            end += len(part)
        kept, first = np.concatenate(found)[start - first :], start
        return kept[: stop - start]

    return read


def report_levels(recording: Recording, levels: Levels) -> None:
    """Print changes to a recording's level, and whether fewer samples decode than declared."""
    note, promised = recording.note, recording.file.num_samples
    if not levels.rms:
        note("kept, but silent: all samples are equal")
    for sentence in levels.describe():
        note(sentence)
    if (number := levels.num_samples) < promised:
        note(f"kept, but {number:,} of {promised:,} samples decode: the file is damaged")
