"""`voices`: ten voices from Debian packages, as a folder in LibriSpeech layout.

5,900 utterances, 6.26 hours, five languages. Across packages, speaker, language and microphone go
together; `fillets-*-v` against `fillets-*-m` is the clean comparison.

    python -m cpc.data.voices        prepares the folder (306 MB of downloads), prints the voices
"""

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from cpc.data.cache import cache_dir
from cpc.data.debian import Archive, Log, Package, fetch_archives, file_sha256, unpack
from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.data.voice_packages import (
    FILLETS_TEXT,
    PACKAGES,
    VOICES,
    Clip,
    Voice,
    decode,
    reason_to_drop,
)
from cpc.types import UserError

#: Change it when the rules change: a folder that was prepared by other rules is made anew.
LAYOUT_VERSION = 1
FIRST_SPEAKER_ID = 1001
TEST_FRACTION = 0.15
SPLIT_SEED = 0


def log_to_stderr(message: str) -> None:
    """A progress line."""
    print(message, file=sys.stderr, flush=True)


def prepare_voices(
    cache: Path | None = None, log: Log = log_to_stderr, *, with_fillets_text: bool = False
) -> Path:
    """Fetch, verify, decode and lay out the voices; returns the folder, at once when it is there.

    The folder holds `ID/CHAPTER/*.flac` with `.trans.txt`, `SPEAKERS.TXT` (names of the voices),
    `train_split.txt` and `test_split.txt`, `phones_festvox_ru.txt` and `phones_asterisk_en.txt`
    (`utterance-id label label ...`, one label each 10 ms), `SOURCES.txt`, `SKIPPED.txt` and
    `CREDITS.txt`. Archives that are in the cache are verified on every call.

    Args:
        cache: where archives and folder go, `cache_dir()` if None.
        log: called with each line of progress.
        with_fillets_text: also fetch 71 MB that hold the transcripts of the four fillets voices.

    Raises:
        UserError: without apt, network or disk space; it names the other sources.
    """
    cache = cache_dir() if cache is None else Path(cache)
    packages = (*PACKAGES, FILLETS_TEXT) if with_fillets_text else PACKAGES
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / "voices.lock", log):
            return _prepare(packages, cache, log)
    except OSError as error:
        raise UserError(f"cannot prepare the voices in {cache}: {error}") from error


def _prepare(packages: Sequence[Package], cache: Path, log: Log) -> Path:
    folder, archives_folder = cache / "voices", cache / "debs"
    made_from = _stamp(folder)
    if all(p.name in made_from for p in packages):
        _check_kept_archives(packages, archives_folder, log)
        return folder
    try:
        archives = fetch_archives(packages, archives_folder, log)
    except UserError as error:
        raise UserError(
            f"cannot fetch the voices: {error} (other sources: a folder of recordings of your "
            "own, LibriSpeech, or the synthetic recordings, which need no download)"
        ) from error
    log("unpacking and decoding")
    part = cache / "voices.part"
    shutil.rmtree(part, ignore_errors=True)  # an interrupted preparation
    part.mkdir()
    with tempfile.TemporaryDirectory(dir=cache, prefix="unpacked-") as unpacked:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # dpkg-deb is a process of its own
            list(pool.map(lambda archive: unpack(archive, Path(unpacked)), archives))
        _write_layout(Path(unpacked), part, log)
        for path in Path(unpacked).glob("usr/share/doc/*/copyright"):
            (part / "licenses").mkdir(exist_ok=True)
            shutil.copyfile(path, part / "licenses" / f"{path.parent.name}.txt")
    _write_credits(part, packages, archives)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    log(f"voices are in {folder}")
    return folder


def _stamp(folder: Path) -> dict[str, str]:
    """Package -> sha256 that a complete folder of this layout was made from; else nothing."""
    try:
        stamp = json.loads((folder / "stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp["archives"] if stamp["layout"] == LAYOUT_VERSION else {}


def _check_kept_archives(packages: Sequence[Package], folder: Path, log: Log) -> None:
    """Verify the archives that are still in the cache, and repair them where there is a network."""
    kept = [p for p in packages if any(folder.glob(f"{p.name}_*.deb"))]
    try:
        fetch_archives(kept, folder, log)
    except UserError as error:
        log(f"{error}; the voices were prepared before the damage and stay in use")


class _Job(NamedTuple):
    """One clip on its way to a file."""

    clip: Clip
    utterance: str
    path: Path


def _write_layout(unpacked: Path, folder: Path, log: Log) -> None:
    speakers = [";ID |SEX| SUBSET |MINUTES| NAME"]
    train, test, sources, skipped = [], [], [], []
    seen: set[str] = set()
    for number, voice in enumerate(VOICES):
        speaker_id = FIRST_SPEAKER_ID + number
        jobs = _jobs(voice, speaker_id, unpacked, folder)
        seconds, reasons = _write_recordings(jobs, seen)
        kept = [job for job, reason in zip(jobs, reasons, strict=True) if reason is None]
        skipped += [
            f"{job.clip.path.relative_to(unpacked)}\t{reason}"
            for job, reason in zip(jobs, reasons, strict=True)
            if reason is not None
        ]
        sources += [f"{job.utterance}\t{job.clip.path.relative_to(unpacked)}" for job in kept]
        _write_texts(kept)
        _write_phones(voice.name, kept, folder)
        is_test = _test_mask(len(kept), number)
        train += [job.utterance for job, held in zip(kept, is_test, strict=True) if not held]
        test += [job.utterance for job, held in zip(kept, is_test, strict=True) if held]
        speakers.append(f"{speaker_id} | {voice.sex} | voices | {seconds / 60:.2f} | {voice.name}")
        log(f"{voice.name}: {len(jobs)} clips, {len(kept)} kept, {seconds / 60:.1f} min")
    _write_lines(folder / "SPEAKERS.TXT", speakers)
    _write_lines(folder / "train_split.txt", train)
    _write_lines(folder / "test_split.txt", test)
    _write_lines(folder / "SOURCES.txt", sources)
    _write_lines(folder / "SKIPPED.txt", skipped)


def _jobs(voice: Voice, speaker_id: int, unpacked: Path, folder: Path) -> list[_Job]:
    """Ids number all clips, so that an id stays the same when a rule drops another clip."""
    chapter = f"{speaker_id}0"
    directory = folder / str(speaker_id) / chapter
    directory.mkdir(parents=True)
    names = [(c, f"{speaker_id}-{chapter}-{i:04d}") for i, c in enumerate(voice.clips(unpacked))]
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


def _test_mask(num_utterances: int, voice_number: int) -> np.ndarray:
    """Which utterances of a voice test: a seeded shuffle, so that both splits hold every voice."""
    is_test = np.zeros(num_utterances, bool)
    order = np.random.default_rng((SPLIT_SEED, voice_number)).permutation(num_utterances)
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


def _write_phones(voice: str, kept: Sequence[_Job], folder: Path) -> None:
    lines = [f"{job.utterance} {' '.join(job.clip.phones)}" for job in kept if job.clip.phones]
    if lines:
        _write_lines(folder / f"phones_{voice.replace('-', '_')}.txt", lines)


def _write_credits(folder: Path, packages: Sequence[Package], archives: Sequence[Archive]) -> None:
    lines = ["Recordings from Debian packages, converted to 16 kHz FLAC.", ""]
    lines += [f"{v.name}: {v.credit}, {v.license}" for v in VOICES]
    lines += ["", "Phone labels: festvox-ru as shipped with the package;"]
    lines += ["asterisk-en by forced alignment with pocketsphinx, not by hand.", ""]
    lines += [f"{a.path.name} sha256 {a.sha256}" for a in archives]
    _write_lines(folder / "CREDITS.txt", lines)
    made_from = {p.name: a.sha256 for p, a in zip(packages, archives, strict=True)}
    stamp = {"layout": LAYOUT_VERSION, "archives": made_from}
    (folder / "stamp.json").write_text(json.dumps(stamp, indent=1), encoding="utf-8")


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@contextmanager
def _only_one(path: Path, log: Log) -> Iterator[None]:
    """Let one process at a time prepare; the lock goes with the process, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another process prepares the voices: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Prepare the voices and print them."""
    from cpc.data.folder import read_folder

    try:
        folder = prepare_voices()
        recordings = read_folder(folder)
    except UserError as error:
        log_to_stderr(str(error))
        return 2
    speakers = np.asarray(recordings.speakers)
    print(f"{'voice':14} {'utterances':>10} {'minutes':>8}   recorded by, license")
    for voice in VOICES:
        mine = speakers == voice.name
        minutes = recordings.lengths[mine].sum() / SAMPLE_RATE_HZ / 60
        print(f"{voice.name:14} {mine.sum():10} {minutes:8.1f}   {voice.credit}, {voice.license}")
    hours = recordings.lengths.sum() / SAMPLE_RATE_HZ / 3600
    print(f"{'all':14} {len(recordings):10} {60 * hours:8.1f}   {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
