"""Reader for folders of recordings, such as LibriSpeech, with one directory per speaker."""

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import scipy.signal

from cpc.data.audio_file import (
    ADVICE,
    AMBIGUOUS_SUFFIXES,
    AUDIO_SUFFIXES,
    COMPANION_SUFFIXES,
    AudioFile,
    choose_channel,
    open_audio,
    read_samples,
    stream_mono,
)
from cpc.data.recordings import SAMPLE_RATE_HZ, Levels, Note, Recordings, measure_levels
from cpc.data.walk import (
    Skipped,
    check_skipped,
    digest_files,
    printable,
    require_data,
    same_name,
)
from cpc.types import UserError

#: Number of samples compared between two files with the same name.
SAMPLES_COMPARED = 60 * SAMPLE_RATE_HZ
#: Largest difference between lossless encodings of a recording, in steps of 16-bit samples.
ROUNDING = 2
#: Largest delay or padding by lossy codecs, and smallest correlation after coding. Correlations are
#: 0.91 for speech in 9 kbit/s Opus, 0.85 for white noise as MP3, and 0.06 between two recordings.
#: In the shortest clips, samples delayed beyond the end lower correlations by up to a fifth.
MAX_DELAY, MIN_CORRELATION = SAMPLE_RATE_HZ // 10, 0.6


def read_folder(
    root: str | Path, speaker_level: int = 1, max_skipped_fraction: float = 0.1
) -> Recordings:
    """Read the headers of all recordings below a folder and return the set of recordings.

    Recordings have a suffix of `AUDIO_SUFFIXES` and any sample rate. A LibriSpeech tree
    (`speaker/chapter/*.flac` with `speaker-chapter.trans.txt`) is recognized, and its speakers are
    named by `SPEAKERS.TXT`. In other trees, the directory at `speaker_level` below `root` (1 is the
    first) names the speaker. If all files are directly in `root`, there is one speaker. Utterance
    ids are file names without suffix. If file names repeat, ids are paths below `root`.

    Damaged files, files in other formats and unreadable folders are listed in `skipped`. If
    recordings have the same sound and differ in name only by the suffix, one is kept, lossless if
    possible. The others are listed in `skipped`. Files without sound (`COMPANION_SUFFIXES`,
    hidden files, licences) are not listed. Truncated files that are kept are listed in `shortened`.
    `pack` finds files that are damaged after their header, and copies under other names.

    Raises:
        UserError: more than `max_skipped_fraction` of the recordings are unreadable.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 (names of folders count, "." has none)
    paths, unreadable, left_out = require_data(
        root, "recordings", AUDIO_SUFFIXES, COMPANION_SUFFIXES, ADVICE
    )
    opened = _open_all(paths)
    readable = [file for file in opened.values() if isinstance(file, AudioFile)]
    damaged = list(unreadable)
    for path, file in opened.items():
        if not isinstance(file, AudioFile):
            is_foreign = path.suffix.lower() in AMBIGUOUS_SUFFIXES
            (left_out if is_foreign else damaged).append(file)
    number = len(readable) + len(damaged)
    check_skipped(damaged, number, max_skipped_fraction, f"recordings in {printable(root)}")
    originals = _find_originals(readable)
    files = [file for file in readable if file.path not in originals]
    kept = [file.path for file in files]
    repeated = [
        (copy, f"{copy} has the sound of {original}")
        for copy, original in (map(printable, pair) for pair in sorted(originals.items()))
    ]
    # Damaged files also get names, so that repairing them does not change other names.
    named = [path for path in paths if path not in originals]
    name_of = dict(zip(named, _unique_names(named, root), strict=True))
    names, speakers = tuple(name_of[path] for path in kept), _speakers(kept, root, speaker_level)

    @functools.cache
    def measure(index: int) -> tuple[AudioFile, Levels]:
        file = choose_channel(files[index])
        return file, measure_levels(stream_mono(file, lambda _: None))

    def read(index: int, start: int, stop: int) -> np.ndarray:
        file, levels = measure(index)
        return read_samples(file, start, stop, levels)

    def stream(index: int, note: Note) -> Iterator[np.ndarray]:
        return stream_mono(files[index], note)

    return Recordings(
        names=names,
        speakers=speakers,
        lengths=np.asarray([file.num_samples for file in files], np.int64),
        read=read,
        stream=stream,
        skipped=(*damaged, *repeated, *left_out),
        shortened=tuple((str(file.path), file.missing) for file in files if file.missing),
        fingerprint=digest_files(path.resolve() for path in kept),
    )


def _open_all(paths: Sequence[Path]) -> dict[Path, AudioFile | Skipped]:
    def attempt(path: Path) -> AudioFile | Skipped:
        try:
            return open_audio(path)
        except (UserError, OSError) as error:
            return printable(path), printable(str(error))

    with ThreadPoolExecutor(min(32, 4 * (os.cpu_count() or 1))) as pool:
        return dict(zip(paths, pool.map(attempt, paths), strict=True))


def _find_originals(files: Sequence[AudioFile]) -> dict[Path, Path]:
    """Map each copy's path to that of its original, whose name differs only in suffix."""
    named: dict[Path, list[AudioFile]] = defaultdict(list)
    for file in files:
        named[_strip_suffixes(file.path)].append(file)
    groups = [group for group in named.values() if len(group) > 1]

    def compare(group: list[AudioFile]) -> dict[Path, Path]:
        originals, copies = [], {}
        for file in sorted(group, key=lambda file: file.is_lossy):
            if original := next((one for one in originals if _sound_alike(one, file)), None):
                copies[file.path] = original.path
            else:
                originals.append(file)
        return copies

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {copy: path for found in pool.map(compare, groups) for copy, path in found.items()}


def _sound_alike(one: AudioFile, other: AudioFile) -> bool:
    """Return whether two files have equal length and sound, except for codec effects."""
    if abs(one.num_samples - other.num_samples) > MAX_DELAY:
        return False
    stop = min(one.num_samples, other.num_samples, SAMPLES_COMPARED)
    try:
        files = map(choose_channel, (one, other))
        a, b = (read_samples(file, 0, stop).astype(float) for file in files)
    except UserError:  # one is damaged, which the pack reports
        return False
    is_same = bool(np.abs(a - b).max(initial=0) <= ROUNDING)
    return is_same or _correlate(a, b, min(MAX_DELAY, stop // 2)) > MIN_CORRELATION


def _correlate(a: np.ndarray, b: np.ndarray, max_delay: int) -> float:
    """Return the largest correlation of two signals when one is delayed by at most `max_delay`."""
    a, b = a - a.mean(), b - b.mean()
    products = scipy.signal.correlate(a, b, method="fft")
    middle = len(b) - 1
    norms = max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-9)
    return float(products[middle - max_delay : middle + max_delay + 1].max()) / norms


def _strip_suffixes(path: Path) -> Path:
    """Remove all audio suffixes, since copies of TIMIT contain both A.WAV and A.WAV.wav."""
    while path.suffix.lower() in AUDIO_SUFFIXES:
        path = path.with_suffix("")
    return path


def _speakers(paths: Sequence[Path], root: Path, level: int) -> tuple[str, ...]:
    transcribed = {
        chapter
        for chapter in {path.parent for path in paths}
        if (chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt").exists()
    }
    known = _speaker_names(root) if transcribed else {}
    speakers = []
    for path in paths:
        chapter, speaker = path.parent, path.parent.parent.name
        # A chapter without its transcript is recognized by its file names.
        is_named = bool(transcribed) and path.name.startswith(f"{speaker}-{chapter.name}-")
        is_libri = chapter in transcribed or is_named
        below = path.relative_to(root)
        speakers.append(known.get(speaker, speaker) if is_libri else _speaker(below, root, level))
    return tuple(speakers)


def _speaker(path: Path, root: Path, level: int) -> str:
    directories = path.parts[:-1]
    if not directories and level == 1:
        return root.name
    if not 1 <= level <= len(directories):
        raise UserError(
            f"{root / path} is above directory level {level}, which names the speaker: "
            "decrease speaker_level (1 is the first below the folder) or move the file"
        )
    return directories[level - 1]


def _unique_names(paths: Sequence[Path], root: Path) -> tuple[str, ...]:
    below = [path.relative_to(root) for path in paths]
    whole = [path.as_posix() for path in below]
    bare = [path.with_suffix("").as_posix() for path in below]
    for names in ([path.stem for path in below], bare, whole):
        composed = tuple(map(same_name, names))
        if len(set(composed)) == len(composed):
            return composed
    return tuple(whole)  # a disk may contain a name twice, with composed and decomposed characters


def _speaker_names(root: Path) -> dict[str, str]:
    """Read speaker names by id from `SPEAKERS.TXT` (`ID | SEX | SUBSET | MINUTES | NAME`).

    The file is in `root` or its parent. Ids are appended to names that occur twice.
    """
    files = [f for folder in (root, root.parent) if (f := folder / "SPEAKERS.TXT").is_file()]
    if not files:
        return {}
    lines = files[0].read_text(encoding="utf-8", errors="replace").splitlines()
    fields = [line.split("|", 4) for line in lines if not line.lstrip().startswith(";")]
    names = {f[0].strip(): f[4].strip() for f in fields if len(f) == 5 and f[4].strip()}
    count = Counter(names.values())
    return {i: name if count[name] == 1 else f"{name} ({i})" for i, name in names.items()}
