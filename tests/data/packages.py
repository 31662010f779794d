"""Recordings in memory, and a small mirror of packages with an `apt-get` that fetches from it."""

import gzip
import os
import subprocess
from pathlib import Path

import G722
import numpy as np
import soundfile

from cpc import data
from cpc.data.sources.debian import Package
from cpc.files import file_sha256

LOCALES = {
    "en": "en_US_f_Allison",
    "es": "es_MX_f_Allison",
    "fr": "fr_CA_f_June",
    "it": "it_IT_m_Carlo",
    "ru": "ru_RU_f_IvrvoiceRU",
}

# MODE: "ok"; "lists": packages are known only after an update; "half": breaks off in mid-fetch;
# "offline": nothing can be fetched.
APT_GET = """#!/bin/bash
echo "$@" >> {log}
mode=$(cat {mode})
for last in "$@"; do :; done
case "$*" in
  *update*) exit 0 ;;
esac
if [[ $mode == offline ]]; then echo "E: Failed to fetch: no network" >&2; exit 100; fi
if [[ $mode == lists && "$*" != *Dir::State::Lists* ]]; then
  echo "E: Unable to locate package $last" >&2; exit 100
fi
file=$(ls {mirror}/"$last"_*.deb 2>/dev/null)
if [[ -z $file ]]; then echo "E: Unable to locate package $last" >&2; exit 100; fi
if [[ $mode == half ]]; then
  head -c 100 "$file" > "$(basename "$file")"; echo "E: connection reset" >&2; exit 100
fi
cp "$file" .
"""


def quiet(_):
    """Take a line of progress."""


def refuse(monkeypatch, *names):
    """Let folders of these names not be listed."""
    scan = os.scandir

    def refuse(path):
        if str(path).endswith(names):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)


def recordings_of(waves, speakers, **columns):
    """Make recordings u0, u1, ... of int16 arrays."""
    return data.Recordings(
        names=tuple(f"u{i}" for i in range(len(waves))),
        speakers=tuple(speakers),
        lengths=np.array([len(wave) for wave in waves], np.int64),
        read=lambda i, start, stop: waves[i][start:stop],
        **columns,
    )


def wave(seconds, seed, rate_hz=16_000):
    rng = np.random.default_rng(seed)
    return np.clip(0.1 * rng.standard_normal(round(seconds * rate_hz)), -1, 1)


def build_deb(mirror, name, tree):
    """Build a .deb of files, path -> bytes, in a mirror, and return its known version, 9-1."""
    root = mirror / "tree" / name
    files = {**tree, f"usr/share/doc/{name}/copyright": b"License: test\n"}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 9-1\nArchitecture: all\nMaintainer: t <t@t>\n"
        "Description: test\n"
    )
    target = mirror / f"{name}_9-1_all.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "-b", str(root), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    return Package(name, "9-1", target.stat().st_size, file_sha256(target))


def fake_apt(folder, monkeypatch):
    """Put the `apt-get` of the mirror in `folder` first on PATH, and the cache next to the mirror.

    The file `mode` in the mirror has its mode, at first "ok".
    """
    monkeypatch.setenv("CPC_DATA", str(folder.with_name("cache")))
    folder.mkdir(exist_ok=True)
    (folder / "mode").write_text("ok")
    script = folder / "bin" / "apt-get"
    script.parent.mkdir()
    script.write_text(APT_GET.format(mirror=folder, mode=folder / "mode", log=folder / "calls"))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")


def audio_bytes(folder, name, samples, rate_hz, **options):
    path = Path(folder) / name
    soundfile.write(path, samples, rate_hz, **options)
    return path.read_bytes()


def g722(seconds, seed):
    pcm = np.round(32767 * wave(seconds, seed)).astype(np.int16)
    return bytes(G722.G722(16_000, 64_000).encode(pcm))


def build_asterisk(mirror, language, number):
    sounds = f"usr/share/asterisk/sounds/{LOCALES[language]}"
    name = f"asterisk-core-sounds-{language}"
    clips = {
        "activated": (1.0, 0), "digits/7": (0.8, 1), "digits/8": (0.9, 2), "repeat": (0.8, 1),
        "short": (0.4, 3), "beep": (1.0, 4), "silence/1": (1.0, 5),
    }  # fmt: skip
    made = {clip: g722(seconds, 10 * number + seed) for clip, (seconds, seed) in clips.items()}
    made |= {"quiet": bytes(G722.G722(16_000, 64_000).encode([0] * 16_000)), "empty": b""}
    build_deb(mirror, f"{name}-g722", {f"{sounds}/{clip}.g722": made[clip] for clip in made})
    text = "\ufeff; comment: no text\nactivated: It is active.\ndigits/7: seven\nbeep: [ a beep ]\n"
    tree = {f"usr/share/doc/{name}/core-sounds-{language}.txt.gz": gzip.compress(text.encode())}
    build_deb(mirror, name, tree)


def build_fillets(mirror, language, number):
    sound = "usr/share/games/fillets-ng/sound"
    tree = {}
    for i, stem in enumerate(("lod-v-a", "lod-v-b", "lod-m-a", "lod-m-b", "lod-x-a")):
        stereo = np.stack([wave(1.0, 100 * number + i, 22_050)] * 2, axis=1)
        content = audio_bytes(mirror, "x.ogg", stereo, 22_050, format="OGG", subtype="VORBIS")
        tree[f"{sound}/lod/{language}/{stem}.ogg"] = content
    nothing = audio_bytes(mirror, "x.ogg", np.zeros((0, 1)), 22_050, format="OGG", subtype="VORBIS")
    tree[f"{sound}/share/deep/{language}/lod-v-nothing.ogg"] = nothing
    build_deb(mirror, f"fillets-ng-data-{language}", tree)


def build_festvox(mirror):
    folder = "usr/share/festival/voices/russian/msu_ru_nsh_clunits"
    tree = {f"{folder}/etc/txt.done.data": '( ru_0001 "вол+ос за \\"ухо" )\n'.encode()}
    for i in range(1, 4):
        wav = audio_bytes(mirror, "x.wav", wave(2.0, 1000 + i), 16_000, subtype="PCM_16")
        tree[f"{folder}/wav/ru_000{i}.wav"] = wav
        tree[f"{folder}/lab/ru_000{i}.lab"] = b"#\n0.34200 125 pau\n0.39200 125 k\n1.98200 125 ay\n"
    build_deb(mirror, "festvox-ru", tree)


def build_mirror(folder):
    """All packages of `voices`, with a handful of clips each."""
    folder.mkdir()
    for number, language in enumerate(LOCALES):
        build_asterisk(folder, language, number)
    build_fillets(folder, "cs", 1)
    build_fillets(folder, "nl", 2)
    build_festvox(folder)
    return folder
