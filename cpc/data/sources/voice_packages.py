"""What the Debian packages of `voices` hold: which recordings are whose, and how they decode.

Telephone prompts in five languages by four speakers (asterisk), game dialogue by two actors each in
Czech and Dutch (fillets), Russian sentences read by one man, with phone labels (festvox-ru).
"""

import gzip
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import G722
import numpy as np
import soundfile
import soxr
from jaxtyping import Int

from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.data.sources.debian import Package

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


class Clip(NamedTuple):
    """One recording in a package."""

    path: Path
    key: str
    """What the package calls it."""
    text: str | None
    phones: tuple[str, ...] = ()
    """One label each 10 ms, where the package or this one has them."""


class Part(NamedTuple):
    """The recordings that a speaker made for one package."""

    name: str
    clips: Callable[[Path], list[Clip]]
    """Folder of unpacked packages -> recordings, sorted by key."""


class Voice(NamedTuple):
    """One speaker and where the recordings are."""

    name: str
    sex: str
    credit: str
    license: str
    parts: tuple[Part, ...]


def asterisk_clips(locale: str, root: Path) -> list[Clip]:
    """Telephone prompts of one language, without silences and sounds that are not speech."""
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
    """Game dialogue of one of the two main actors: `v` is the low voice, `m` the high one."""
    paths = sorted((root / FILLETS / "sound").rglob(f"{language}/*.ogg"))
    mine = [p for p in paths if re.fullmatch(rf"[^-]+-{actor}-.*\.ogg", p.name)]
    return [Clip(p, f"{p.parent.parent.name}/{p.stem}", None) for p in mine]


def festvox_clips(root: Path) -> list[Clip]:
    """Read sentences with the phones that the voice was built from."""
    folder = root / FESTVOX
    prompts = (folder / "etc/txt.done.data").read_text(encoding="utf-8")
    pairs = re.findall(r'^\(\s*(\S+)\s+"(.*)"\s*\)\s*$', prompts, re.MULTILINE)
    texts = {key: re.sub(r"\\(.)", r"\1", text).replace("+", "") for key, text in pairs}
    return [
        Clip(p, p.stem, texts.get(p.stem), festvox_phones(folder / "lab" / f"{p.stem}.lab"))
        for p in sorted((folder / "wav").glob("*.wav"))
    ]


def festvox_phones(path: Path) -> tuple[str, ...]:
    """Labels each 10 ms from lines `END_SECONDS 125 PHONE` after a line `#`."""
    labels: list[str] = []
    for line in path.read_text(encoding="utf-8").split("#", 1)[1].splitlines():
        if line.strip():
            end_seconds, _, phone = line.split()
            labels += [phone] * (round(100 * float(end_seconds)) - len(labels))
    return tuple(labels)


def _asterisk_phones() -> dict[str, tuple[str, ...]]:
    """Forced alignments of the English prompts, by a recognizer and not by hand."""
    path = Path(__file__).with_name("asterisk_en_phones.json")
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {
        key: tuple(name for name, _, length in entry["phones"] for _ in range(length))
        for key, entry in entries.items()
    }


def _asterisk(language: str, locale: str) -> Part:
    return Part(f"asterisk-{language}", partial(asterisk_clips, locale))


def _fillets(language: str, actor: str) -> Voice:
    name = f"fillets-{language}-{actor}"
    clips = partial(fillets_clips, language, actor)
    return Voice(name, "-", "an actor", "GPL-2", (Part(name, clips),))


VOICES = (
    Voice(
        "asterisk-en-es",  # she speaks the English and the Spanish prompts
        "F",
        "Allison Smith",
        "CC-BY-SA-3.0",
        (_asterisk("en", "en_US_f_Allison"), _asterisk("es", "es_MX_f_Allison")),
    ),
    Voice("asterisk-fr", "F", "June Wallack", "CC-BY-SA-3.0", (_asterisk("fr", "fr_CA_f_June"),)),
    Voice("asterisk-it", "M", "Carlo Flora", "CC-BY-3.0", (_asterisk("it", "it_IT_m_Carlo"),)),
    Voice("asterisk-ru", "F", "ivrvoice.ru", "CC-BY-3.0", (_asterisk("ru", "ru_RU_f_IvrvoiceRU"),)),
    Voice("festvox-ru", "M", "one man", "BSD-like", (Part("festvox-ru", festvox_clips),)),
    _fillets("cs", "v"),
    _fillets("cs", "m"),
    _fillets("nl", "v"),
    _fillets("nl", "m"),
)


def decode(path: Path) -> Int[np.ndarray, " s"]:
    """A file of any of the packages as mono int16 at 16 kHz."""
    if path.suffix == ".g722":  # 64 kbit/s; the decoder has a state, so a new one for each file
        data = path.read_bytes()
        return np.asarray(G722.G722(SAMPLE_RATE_HZ, 64_000).decode(data) if data else [], np.int16)
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    if rate != SAMPLE_RATE_HZ:
        mono = soxr.resample(mono, rate, SAMPLE_RATE_HZ)
    # Vorbis decodes beyond full scale, which int16 would wrap round.
    return np.clip(np.round(mono * 32768), -32768, 32767).astype(np.int16)


def reason_to_drop(samples: Int[np.ndarray, " s"]) -> str | None:
    """Why a clip is not speech worth keeping: too short or too quiet; None if it is."""
    if len(samples) < MIN_SECONDS * SAMPLE_RATE_HZ:
        return f"shorter than {MIN_SECONDS} s"
    if np.abs(samples.astype(np.int32)).max() < MIN_PEAK * 32768:
        return f"peak under {MIN_PEAK}"
    return None
