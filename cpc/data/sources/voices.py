"""`voices`: nine speakers from Debian packages, as a folder in LibriSpeech layout.

5,900 utterances, 6.26 hours, five languages. Across packages, speaker, language and microphone go
together; `fillets-*-v` against `fillets-*-m` is the clean comparison.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from cpc.data.cache import Log, cache_dir, log_to_stderr
from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.data.sources.debian import laying_out, preparing, read_stamp
from cpc.data.sources.voice_packages import (
    PACKAGES,
    VOICES,
    Clip,
    Part,
    decode,
    reason_to_drop,
)
from cpc.files import file_sha256

#: Change it when the rules change: a folder that was prepared by other rules is made anew.
LAYOUT_VERSION = 2
#: Named by the layout, so that no version of this package reads what another has laid out.
FOLDER_NAME = f"voices-{LAYOUT_VERSION}"
FIRST_SPEAKER_ID = 1001
TEST_FRACTION = 0.15
SPLIT_SEED = 0
ADVICE = (
    "other sources: a folder of recordings of your own, LibriSpeech, or the synthetic recordings, "
    "which need no download"
)


def prepare_voices(cache: Path | None = None, log: Log = log_to_stderr) -> Path:
    """Fetch, verify, decode and lay out the voices in `cache`, `cache_dir()` if None.

    The returned folder contains `ID/CHAPTER/*.flac` with `.trans.txt`, `SPEAKERS.TXT` (names of the
    voices), `train_split.txt` and `test_split.txt`, `phones_festvox_ru.txt` and
    `phones_asterisk_en.txt` (`utterance-id label label ...`, one label every 10 ms), `SOURCES.txt`,
    `SKIPPED.txt` and `CREDITS.txt`.

    Raises:
        UserError: without apt, network or disk space; it names the other sources.
    """
    with preparing("the voices", cache, "voices.lock", log) as home:
        folder = home / FOLDER_NAME
        if not is_prepared(home):
            described = laying_out("the voices", folder, PACKAGES, _list_credits(), {}, ADVICE, log)
            with described as (unpacked, part):
                log("decoding")
                _write_layout(unpacked, part, log)
        return folder


def is_prepared(cache: Path | None = None) -> bool:
    """Return whether `cache` (`cache_dir()` if None) holds the voices, laid out as now."""
    made_from = read_stamp((cache_dir() if cache is None else Path(cache)) / FOLDER_NAME)
    return all(package.name in made_from for package in PACKAGES)


class _Job(NamedTuple):
    """One clip on its way to a file."""

    clip: Clip
    utterance: str
    path: Path


def _write_layout(unpacked: Path, folder: Path, log: Log) -> None:
    speakers = [";ID |SEX| SUBSET |MINUTES| NAME"]
    train, test, sources, skipped = [], [], [], []
    seen: set[str] = set()
    number = 0  # of the part: ids and splits of the others stay when one joins another speaker
    for voice in VOICES:
        speaker_id, minutes = FIRST_SPEAKER_ID + number, 0.0
        for part in voice.parts:
            jobs = _jobs(part, speaker_id, FIRST_SPEAKER_ID + number, unpacked, folder)
            seconds, reasons = _write_recordings(jobs, seen)
            kept = [job for job, reason in zip(jobs, reasons, strict=True) if reason is None]
            skipped += [
                f"{job.clip.path.relative_to(unpacked)}\t{reason}"
                for job, reason in zip(jobs, reasons, strict=True)
                if reason is not None
            ]
            sources += [f"{job.utterance}\t{job.clip.path.relative_to(unpacked)}" for job in kept]
            _write_texts(kept)
            _write_phones(part.name, kept, folder)
            is_test = _test_mask(len(kept), number)
            train += [job.utterance for job, held in zip(kept, is_test, strict=True) if not held]
            test += [job.utterance for job, held in zip(kept, is_test, strict=True) if held]
            log(f"{part.name}: {len(jobs)} clips, {len(kept)} kept, {seconds / 60:.1f} min")
            minutes += seconds / 60
            number += 1
        speakers.append(f"{speaker_id} | {voice.sex} | voices | {minutes:.2f} | {voice.name}")
    _write_lines(folder / "SPEAKERS.TXT", speakers)
    _write_lines(folder / "train_split.txt", train)
    _write_lines(folder / "test_split.txt", test)
    _write_lines(folder / "SOURCES.txt", sources)
    _write_lines(folder / "SKIPPED.txt", skipped)


def _jobs(part: Part, speaker_id: int, part_id: int, unpacked: Path, folder: Path) -> list[_Job]:
    """Ids number all clips, so that an id stays the same when a rule drops another clip."""
    chapter = f"{part_id}0"
    directory = folder / str(speaker_id) / chapter
    directory.mkdir(parents=True)
    names = [(c, f"{speaker_id}-{chapter}-{i:04d}") for i, c in enumerate(part.clips(unpacked))]
    return [_Job(clip, name, directory / f"{name}.flac") for clip, name in names]


def _write_recordings(jobs: Sequence[_Job], seen: set[str]) -> tuple[float, list[str | None]]:
    """Seconds written, and for each job the reason why it was dropped, or None."""

    def write(job: _Job, is_repeat: bool) -> tuple[float, str | None]:
        if is_repeat:
            return 0.0, "identical to another clip"
        try:
            samples = decode(job.clip.path)
        except soundfile.LibsndfileError as error:
            return 0.0, f"does not decode: {error.error_string}"
        if reason := reason_to_drop(samples):
            return 0.0, reason
        soundfile.write(job.path, samples, SAMPLE_RATE_HZ, subtype="PCM_16")
        return len(samples) / SAMPLE_RATE_HZ, None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        repeats = []
        for digest in pool.map(lambda job: file_sha256(job.clip.path), jobs):
            repeats.append(digest in seen)
            seen.add(digest)
        results = list(pool.map(write, jobs, repeats))
    return sum(seconds for seconds, _ in results), [reason for _, reason in results]


def _test_mask(num_utterances: int, number: int) -> np.ndarray:
    """Which utterances of a part test: a seeded shuffle, so that both splits hold every voice."""
    is_test = np.zeros(num_utterances, bool)
    order = np.random.default_rng((SPLIT_SEED, number)).permutation(num_utterances)
    is_test[order[: round(TEST_FRACTION * num_utterances)]] = True
    return is_test


def _write_texts(kept: Sequence[_Job]) -> None:
    """`ID-CHAPTER.trans.txt` in capitals; UNKNOWN where the packages have no text."""
    lines = [
        f"{job.utterance} {' '.join((job.clip.text or 'UNKNOWN').upper().split())}" for job in kept
    ]
    if kept:
        speaker, chapter, _ = kept[0].utterance.split("-")
        _write_lines(kept[0].path.with_name(f"{speaker}-{chapter}.trans.txt"), lines)


def _write_phones(part: str, kept: Sequence[_Job], folder: Path) -> None:
    lines = [f"{job.utterance} {' '.join(job.clip.phones)}" for job in kept if job.clip.phones]
    if lines:
        _write_lines(folder / f"phones_{part.replace('-', '_')}.txt", lines)


def _list_credits() -> list[str]:
    lines = ["Recordings from Debian packages, converted to 16 kHz FLAC.", ""]
    lines += [f"{v.name}: {v.credit}, {v.license}" for v in VOICES]
    lines += ["", "Phone labels: festvox-ru as shipped with the package;"]
    return [*lines, "asterisk-en by forced alignment with pocketsphinx, not by hand."]


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
