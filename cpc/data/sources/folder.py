"""A folder of recordings: the LibriSpeech tree, or any tree with a directory level for speakers."""

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
    Found,
    Skipped,
    check_skipped,
    digest_files,
    find_data,
    list_endings,
    printable,
    same_name,
)
from cpc.types import UserError

#: So many samples of two files of one name are compared.
SAMPLES_COMPARED = 60 * SAMPLE_RATE_HZ
#: Units of 16 bits by which encoders differ that lose nothing.
ROUNDING = 2
#: By how much other codecs delay or fill up sound, and how much they leave, as a correlation: of
#: speech in 9 kbit/s (Opus) 0.91, of white noise as MP3 0.85; two other recordings have 0.06.
#: What a delay moves beyond the end lowers it, in the shortest clips by a fifth.
MOST_DELAY, LEAST_ALIKE = SAMPLE_RATE_HZ // 10, 0.6


def read_folder(
    root: str | Path, speaker_level: int = 1, max_skipped_fraction: float = 0.1
) -> Recordings:
    """Return the recordings below `root`, of any rate, as `AUDIO_SUFFIXES` lists their formats.

    A LibriSpeech tree (`speaker/chapter/*.flac` with `speaker-chapter.trans.txt`) is recognized;
    `SPEAKERS.TXT` names its speakers. In any other tree directory level `speaker_level` below
    `root` (1 is the first) names the speaker; files that all lie in `root` are one speaker's. An
    utterance's id is the file's name without ending or, where names repeat, the path below `root`.

    Only headers are read here. Every other file below `root` is listed in `skipped`, except those
    that hold no sound (`COMPANION_SUFFIXES`, hidden files, licences): damaged files, other formats,
    folders that may not be read, and copies of one name and sound with another ending, of which the
    one that lost nothing is kept. More than `max_skipped_fraction` of the recordings unreadable are
    an error. Files that are cut short and kept are listed in `shortened`. The pack finds files that
    are damaged behind a good header, and copies under other names.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 (names of folders count, "." has none)
    paths, unreadable, left_out = _find_audio(root)
    opened = _open_all(paths)
    sound = [what for what in opened.values() if isinstance(what, AudioFile)]
    damaged = list(unreadable)
    for path, what in opened.items():
        if not isinstance(what, AudioFile):
            is_foreign = path.suffix.lower() in AMBIGUOUS_SUFFIXES
            (left_out if is_foreign else damaged).append(what)
    num_readable = len(sound) + len(damaged)
    check_skipped(damaged, num_readable, max_skipped_fraction, f"recordings in {printable(root)}")
    originals = _find_originals(sound)
    files = [file for file in sound if file.path not in originals]
    kept = [file.path for file in files]
    repeated = [
        (copy, f"{copy} has the sound of {original}")
        for copy, original in (map(printable, pair) for pair in sorted(originals.items()))
    ]
    # Damaged files keep their names from others: repaired, they change nobody's.
    named = [path for path in paths if path not in originals]
    of_path = dict(zip(named, _unique_names(named, root), strict=True))
    names, speakers = tuple(of_path[path] for path in kept), _speakers(kept, root, speaker_level)

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


def _find_audio(root: Path) -> Found:
    if not root.is_dir():
        raise UserError(f"{printable(root)} is not a folder: pass a folder of recordings")
    found = find_data(root, AUDIO_SUFFIXES, COMPANION_SUFFIXES, ADVICE)
    if not found.files:
        reasons = [reason for _, reason in (*found.unreadable, *found.left_out)]
        raise UserError(
            f"no recordings in {printable(root)}: looked for {list_endings(AUDIO_SUFFIXES)} files "
            + "; ".join(["at any depth", *reasons[:3]])
        )
    return found


def _open_all(paths: Sequence[Path]) -> dict[Path, AudioFile | Skipped]:
    def attempt(path: Path) -> AudioFile | Skipped:
        try:
            return open_audio(path)
        except (UserError, OSError) as error:
            return printable(path), printable(str(error))

    with ThreadPoolExecutor(min(32, 4 * (os.cpu_count() or 1))) as pool:
        return dict(zip(paths, pool.map(attempt, paths), strict=True))


def _find_originals(files: Sequence[AudioFile]) -> dict[Path, Path]:
    """Path of a copy -> that of the file whose sound it has; only their endings differ."""
    named: dict[Path, list[AudioFile]] = defaultdict(list)
    for file in files:
        named[_without_endings(file.path)].append(file)
    groups = [group for group in named.values() if len(group) > 1]

    def compare(group: list[AudioFile]) -> dict[Path, Path]:
        originals, found = [], {}
        for file in sorted(group, key=lambda file: file.is_lossy):
            if other := next((one for one in originals if _sound_alike(one, file)), None):
                found[file.path] = other.path
            else:
                originals.append(file)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {copy: path for found in pool.map(compare, groups) for copy, path in found.items()}


def _sound_alike(one: AudioFile, other: AudioFile) -> bool:
    """Whether two files are as long and begin with the same sound, but for what codecs do to it."""
    if abs(one.num_samples - other.num_samples) > MOST_DELAY:
        return False
    stop = min(one.num_samples, other.num_samples, SAMPLES_COMPARED)
    try:
        files = map(choose_channel, (one, other))
        a, b = (read_samples(file, 0, stop).astype(float) for file in files)
    except UserError:  # one is damaged: the pack will say so
        return False
    is_same = bool(np.abs(a - b).max(initial=0) <= ROUNDING)
    return is_same or _correlate(a, b, min(MOST_DELAY, stop // 2)) > LEAST_ALIKE


def _correlate(a: np.ndarray, b: np.ndarray, most: int) -> float:
    """Return the greatest correlation of two signals, one of them delayed by at most `most`.

    >>> a, b = np.random.default_rng(0).normal(size=(2, 1000))
    >>> round(_correlate(a[20:], 3 + a[:-20], 50), 2), _correlate(a, b, 50) < 0.2
    (0.98, True)
    """
    a, b = a - a.mean(), b - b.mean()
    products = scipy.signal.correlate(a, b, method="fft")
    middle = len(b) - 1
    norms = max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-9)
    return float(products[middle - most : middle + most + 1].max()) / norms


def _without_endings(path: Path) -> Path:
    """The path without any ending of a recording: TIMIT is found as A.WAV beside A.WAV.wav."""
    while path.suffix.lower() in AUDIO_SUFFIXES:
        path = path.with_suffix("")
    return path


def _speakers(paths: Sequence[Path], root: Path, level: int) -> tuple[str, ...]:
    """The speaker of each file: of a LibriSpeech chapter its own, else a directory's name."""
    transcribed = {
        chapter
        for chapter in {path.parent for path in paths}
        if (chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt").exists()
    }
    known = _speaker_names(root) if transcribed else {}
    speakers = []
    for path in paths:
        chapter, speaker = path.parent, path.parent.parent.name
        # A chapter that lost its transcript is known by its files.
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
            f"{root / path} lies above directory level {level}, which names the speaker: "
            "choose a smaller speaker_level (1 is the first below the folder) or move the file"
        )
    return directories[level - 1]


def _unique_names(paths: Sequence[Path], root: Path) -> tuple[str, ...]:
    below = [path.relative_to(root) for path in paths]
    for names in (
        tuple(same_name(path.stem) for path in below),
        tuple(same_name(path.with_suffix("").as_posix()) for path in below),
    ):
        if len(set(names)) == len(names):
            return names
    names = tuple(same_name(path.as_posix()) for path in below)
    # A disk may hold one name twice, composed and decomposed.
    return names if len(set(names)) == len(names) else tuple(path.as_posix() for path in below)


def _speaker_names(root: Path) -> dict[str, str]:
    """Speaker id -> name by `SPEAKERS.TXT` (`ID | SEX | SUBSET | MINUTES | NAME`) here or above.

    Two speakers of one name keep their ids beside it.
    """
    path = next(
        (f / "SPEAKERS.TXT" for f in (root, root.parent) if (f / "SPEAKERS.TXT").is_file()), None
    )
    if path is None:
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    fields = [line.split("|", 4) for line in lines if not line.lstrip().startswith(";")]
    names = {f[0].strip(): f[4].strip() for f in fields if len(f) == 5 and f[4].strip()}
    count = Counter(names.values())
    return {i: name if count[name] == 1 else f"{name} ({i})" for i, name in names.items()}
