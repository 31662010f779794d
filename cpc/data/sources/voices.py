"""The dataset `voices`: nine speakers from Debian packages, in the layout of LibriSpeech.

It contains 5,900 utterances, 6.26 hours and seven languages: telephone prompts in five languages by
four speakers (asterisk), game dialogue by two actors each in Czech and Dutch (fillets), and Russian
sentences read by one man, with phone labels (festvox-ru).

Across packages, the speaker is confounded with language and microphone. Only `fillets-*-v` and
`fillets-*-m` have different speakers under equal conditions.
"""

import gzip
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import G722
import numpy as np
import soundfile
import soxr
from jaxtyping import Int

from cpc.data.cache import Log, cache_dir, log_to_stderr, preparing
from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.data.sources.debian import Package, laying_out, read_stamp
from cpc.files import file_sha256

PACKAGES = (
    Package("asterisk-core-sounds-en-g722", "1.6.1-1", 10_565_860,
            "38c5261820b406dcb0ecb37675720da2b0864850690690352ca52707eb623806"),
    Package("asterisk-core-sounds-en", "1.6.1-1", 22_844,
            "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50"),
    Package("asterisk-core-sounds-es-g722", "1.6.1-1", 13_048_380,
            "e4e3b4281057d3b81b779298fd6be705f57411513955c518eed1bcaabbd615b8"),
    Package("asterisk-core-sounds-es", "1.6.1-1", 22_012,
            "9afdab7f559f036649fb406e625899306ca1004df8ebe39c30bfbd5912d66f74"),
    Package("asterisk-core-sounds-fr-g722", "1.6.1-1", 10_822_860,
            "7add61d5e42279ecff1bbdf842a5a946ac3644fac9a0fe44384731aa7270c8e0"),
    Package("asterisk-core-sounds-fr", "1.6.1-1", 23_152,
            "04c82c78c570c43a7136cbc5e2488d0c470b775468dff9fbce4a131b18cf1056"),
    Package("asterisk-core-sounds-it-g722", "1.6.1-1", 10_087_176,
            "46b4cf7afc508a5fcfc051b7ea233251c0d195dd4ef83cc4b7facb4c6429b016"),
    Package("asterisk-core-sounds-it", "1.6.1-1", 23_972,
            "3884d9457e12f21caa018c18f0d587df5d53ebea14b673d8453a134c5941ab3b"),
    Package("asterisk-core-sounds-ru-g722", "1.6.1-1", 10_579_440,
            "673b4238a6b8269960f055d868c6a11083f7a0d00979167cb01554046b48ed9b"),
    Package("asterisk-core-sounds-ru", "1.6.1-1", 25_592,
            "28a61616bb0cd3345a7ea532dec4df9f071e5d0fa9f8c1a563ea9669002f39ab"),
    Package("festvox-ru", "0.5+dfsg-6", 178_728_512,
            "21ef3f0f2978ecf2e2eddb367cb0ff4a72572196d28dc69feb84f4177af5e6c4"),
    Package("fillets-ng-data-cs", "1.0.1-1.1", 39_042_172,
            "3ecef99b9456f1c80c9625c6f2418642b52d58e7167a46bad7a412db17991b14"),
    Package("fillets-ng-data-nl", "1.0.1-1.1", 32_593_580,
            "afb4443fda9ab507dee578b75be857d121718a1cd6017a474f30e0eb13dc9d10"),
)  # fmt: skip
MIN_SECONDS = 0.5
MIN_PEAK = 0.01

FESTVOX = "usr/share/festival/voices/russian/msu_ru_nsh_clunits"
FILLETS = "usr/share/games/fillets-ng"
#: Speakers of a game, who share language and studio, with a low voice `v` or a high voice `m`.
GAME_VOICES = r"fillets-\w+-[vm]"
#: Increment this if the layout changes, so that folders are prepared again.
LAYOUT_VERSION = 2
#: Name with the layout version, so that folders with another layout are not read.
FOLDER_NAME = f"voices-{LAYOUT_VERSION}"
FIRST_SPEAKER_ID = 1001
TEST_FRACTION = 0.15
SPLIT_SEED = 0
ADVICE = (
    "alternatively, use a folder of recordings, LibriSpeech, or the synthetic recordings, which "
    "need no download"
)


class Clip(NamedTuple):
    """A recording in a package."""

    path: Path
    key: str  # name in the package
    text: str | None
    phones: tuple[str, ...] = ()  # one label every 10 ms, or empty if the labels are unknown


class Voice(NamedTuple):
    """A speaker, with recordings from one or more packages."""

    name: str
    sex: str
    credit: str
    license: str
    parts: dict[str, Callable[[Path], list[Clip]]]
    """Name of each part, such as one language -> function(unpacked packages) listing its clips."""


def asterisk_clips(locale: str, root: Path) -> list[Clip]:
    """Return the telephone prompts in a locale, without silences and non-speech sounds."""
    language = locale[:2]
    sounds = root / "usr/share/asterisk/sounds" / locale
    name = f"asterisk-core-sounds-{language}"
    with gzip.open(root / "usr/share/doc" / name / f"core-sounds-{language}.txt.gz") as file:
        lines = file.read().decode("utf-8-sig").splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line and not line.startswith(";"))
    texts = {key.strip(): text.strip() for key, text in pairs}
    phones = _asterisk_phones() if language == "en" else {}
    clips = []
    for path in sorted(sounds.rglob("*.g722")):
        key = path.relative_to(sounds).with_suffix("").as_posix()
        text = texts.get(key) or None
        if not key.startswith("silence/") and not (text or "").startswith("["):
            clips.append(Clip(path, key, text, phones.get(key, ())))
    return clips


def fillets_clips(language: str, actor: str, root: Path) -> list[Clip]:
    """Return the game dialogue by an actor, `v` (low voice) or `m` (high voice)."""
    paths = sorted((root / FILLETS / "sound").rglob(f"{language}/*.ogg"))
    return [
        Clip(p, f"{p.parent.parent.name}/{p.stem}", None)
        for p in paths
        if re.fullmatch(rf"[^-]+-{actor}-.*\.ogg", p.name)
    ]


def festvox_clips(root: Path) -> list[Clip]:
    """Return the read sentences, with the phone labels from which the voice was built."""
    folder = root / FESTVOX
    prompts = (folder / "etc/txt.done.data").read_text(encoding="utf-8")
    pairs = re.findall(r'^\(\s*(\S+)\s+"(.*)"\s*\)\s*$', prompts, re.MULTILINE)
    texts = {key: re.sub(r"\\(.)", r"\1", text).replace("+", "") for key, text in pairs}
    return [
        Clip(p, p.stem, texts.get(p.stem), festvox_phones(folder / "lab" / f"{p.stem}.lab"))
        for p in sorted((folder / "wav").glob("*.wav"))
    ]


def festvox_phones(path: Path) -> tuple[str, ...]:
    """Read a label file as one label every 10 ms.

    Lines after the line `#` have the format `END_SECONDS 125 PHONE`.
    """
    labels: list[str] = []
    for line in path.read_text(encoding="utf-8").split("#", 1)[1].splitlines():
        if line.strip():
            end_seconds, _, phone = line.split()
            labels += [phone] * (round(100 * float(end_seconds)) - len(labels))
    return tuple(labels)


def _asterisk_phones() -> dict[str, tuple[str, ...]]:
    path = Path(__file__).with_name("asterisk_en_phones.json")
    entries = json.loads(path.read_text(encoding="utf-8")).items()
    runs = {key: [[name] * length for name, _, length in entry["phones"]] for key, entry in entries}
    return {key: tuple(itertools.chain(*own)) for key, own in runs.items()}


def _asterisk(name: str, sex: str, credit: str, license: str, *locales: str) -> Voice:
    parts = {f"asterisk-{one[:2]}": partial(asterisk_clips, one) for one in locales}
    return Voice(f"asterisk-{name}", sex, credit, license, parts)


def _fillets(language: str, actor: str) -> Voice:
    name = f"fillets-{language}-{actor}"
    return Voice(name, "-", "an actor", "GPL-2", {name: partial(fillets_clips, language, actor)})


VOICES = (  # the first speaks both English and Spanish prompts
    _asterisk("en-es", "F", "Allison Smith", "CC-BY-SA-3.0", "en_US_f_Allison", "es_MX_f_Allison"),
    _asterisk("fr", "F", "June Wallack", "CC-BY-SA-3.0", "fr_CA_f_June"),
    _asterisk("it", "M", "Carlo Flora", "CC-BY-3.0", "it_IT_m_Carlo"),
    _asterisk("ru", "F", "ivrvoice.ru", "CC-BY-3.0", "ru_RU_f_IvrvoiceRU"),
    Voice("festvox-ru", "M", "one man", "BSD-like", {"festvox-ru": festvox_clips}),
    *(_fillets(language, actor) for language in ("cs", "nl") for actor in "vm"),
)
CREDITS = (
    *("Recordings from Debian packages, converted to 16 kHz FLAC.", ""),
    *(f"{voice.name}: {voice.credit}, {voice.license}" for voice in VOICES),
    *("", "Phone labels: festvox-ru as shipped with the package;"),
    "asterisk-en by forced alignment with pocketsphinx, not by hand.",
)


def decode(path: Path) -> Int[np.ndarray, " s"]:
    """Decode a file from any package to mono int16 at 16 kHz."""
    if path.suffix == ".g722":  # 64 kbit/s; decoders are stateful, so each file needs a new one
        data = path.read_bytes()
        return np.asarray(G722.G722(SAMPLE_RATE_HZ, 64_000).decode(data) if data else [], np.int16)
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)
    if rate != SAMPLE_RATE_HZ:
        mono = soxr.resample(mono, rate, SAMPLE_RATE_HZ)
    # Vorbis decodes beyond full scale, which would overflow int16.
    return np.clip(np.round(mono * 32768), -32768, 32767).astype(np.int16)


def reason_to_drop(samples: Int[np.ndarray, " s"]) -> str | None:
    """Return why a clip is dropped (too short or too quiet), or None to keep it."""
    if len(samples) < MIN_SECONDS * SAMPLE_RATE_HZ:
        return f"shorter than {MIN_SECONDS} s"
    if np.abs(samples.astype(np.int32)).max() < MIN_PEAK * 32768:
        return f"peak under {MIN_PEAK}"
    return None


def prepare_voices(log: Log = log_to_stderr) -> Path:
    """Prepare the dataset in `cache_dir()` and return its folder.

    The packages are fetched, verified and decoded if necessary. The folder contains
    `ID/CHAPTER/*.flac` with `.trans.txt`, `SPEAKERS.TXT` (names of the voices), `train_split.txt`
    and `test_split.txt`, `phones_festvox_ru.txt` and `phones_asterisk_en.txt` (lines
    `utterance-id label label ...`, one label every 10 ms), `SOURCES.txt`, `SKIPPED.txt` and
    `CREDITS.txt`.
    """
    with preparing("voices", log) as home:
        folder = home / FOLDER_NAME
        if not is_prepared():
            described = laying_out("the voices", folder, PACKAGES, CREDITS, {}, ADVICE, log)
            with described as (unpacked, part):
                log("decoding")
                _write_layout(unpacked, part, log)
        return folder


def is_prepared() -> bool:
    """Return whether `cache_dir()` contains the voices in this layout."""
    return {package.name for package in PACKAGES} <= set(read_stamp(cache_dir() / FOLDER_NAME))


def _write_layout(unpacked: Path, folder: Path, log: Log) -> None:
    speakers = [";ID |SEX| SUBSET |MINUTES| NAME"]
    train, test, sources, skipped = [], [], [], []
    seen: set[str] = set()
    number = 0  # number of the part, so that merging speakers does not change other ids and splits
    for voice in VOICES:
        speaker_id, minutes = FIRST_SPEAKER_ID + number, 0.0
        for name, find_clips in voice.parts.items():
            chapter = folder / str(speaker_id) / f"{FIRST_SPEAKER_ID + number}0"
            chapter.mkdir(parents=True)
            stem = chapter / f"{speaker_id}-{chapter.name}"
            clips = find_clips(unpacked)
            # Ids do not depend on which clips are dropped.
            paths = [Path(f"{stem}-{i:04d}.flac") for i in range(len(clips))]
            seconds, reasons = _write_recordings(clips, paths, seen)
            kept = {}
            for clip, path, reason in zip(clips, paths, reasons, strict=True):
                source = clip.path.relative_to(unpacked)
                if reason is None:
                    kept[path.stem] = clip
                    sources.append(f"{path.stem}\t{source}")
                else:
                    skipped.append(f"{source}\t{reason}")
            texts = [[key, *(c.text or "UNKNOWN").upper().split()] for key, c in kept.items()]
            phones = [[key, *c.phones] for key, c in kept.items() if c.phones]
            phones_path = folder / f"phones_{name.replace('-', '_')}.txt"
            for path, rows in ((Path(f"{stem}.trans.txt"), texts), (phones_path, phones)):
                if rows:
                    _write_lines(path, map(" ".join, rows))
            for utterance, is_test in zip(kept, _test_mask(len(kept), number), strict=True):
                (test if is_test else train).append(utterance)
            log(f"{name}: {len(clips)} clips, {len(kept)} kept, {seconds / 60:.1f} min")
            minutes += seconds / 60
            number += 1
        speakers.append(f"{speaker_id} | {voice.sex} | voices | {minutes:.2f} | {voice.name}")
    lists = {"SPEAKERS.TXT": speakers, "train_split.txt": train, "test_split.txt": test}
    for name, lines in {**lists, "SOURCES.txt": sources, "SKIPPED.txt": skipped}.items():
        _write_lines(folder / name, lines)


def _write_recordings(
    clips: Sequence[Clip], paths: Sequence[Path], seen: set[str]
) -> tuple[float, list[str | None]]:
    """Write clips to paths, and return their total seconds and a drop reason or None for each."""

    def write(clip: Clip, path: Path, is_repeat: bool) -> tuple[float, str | None]:
        if is_repeat:
            return 0.0, "identical to another clip"
        try:
            samples = decode(clip.path)
        except soundfile.LibsndfileError as error:
            return 0.0, f"does not decode: {error.error_string}"
        if reason := reason_to_drop(samples):
            return 0.0, reason
        # Through memory, because soundfile would sync each of the thousands of files to disk.
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, SAMPLE_RATE_HZ, format="FLAC", subtype="PCM_16")
        path.write_bytes(buffer.getvalue())
        return len(samples) / SAMPLE_RATE_HZ, None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        repeats = []
        for digest in pool.map(file_sha256, [clip.path for clip in clips]):
            repeats.append(digest in seen)
            seen.add(digest)
        results = list(pool.map(write, clips, paths, repeats))
    return sum(seconds for seconds, _ in results), [reason for _, reason in results]


def _test_mask(num_utterances: int, number: int) -> np.ndarray:
    """Return a random test mask for one part, so that each voice is in both splits."""
    order = np.random.default_rng((SPLIT_SEED, number)).permutation(num_utterances)
    return np.isin(np.arange(num_utterances), order[: round(TEST_FRACTION * num_utterances)])


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
