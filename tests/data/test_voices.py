import shutil
from unittest import mock

import numpy as np
import packages
import pytest
import soundfile
from packages import quiet

from cpc import data
from cpc.data.__main__ import main
from cpc.data.sources.voices import (
    FOLDER_NAME,
    VOICES,
    _test_mask,
    decode,
    festvox_phones,
    is_prepared,
    prepare_voices,
    reason_to_drop,
)
from cpc.types import UserError


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return packages.build_mirror(tmp_path_factory.mktemp("voices") / "mirror")


@pytest.fixture(scope="module")
def prepared(built, tmp_path_factory):
    """The folder as the packages of the mirror make it."""
    with pytest.MonkeyPatch.context() as patch:
        packages.fake_apt(built, patch)
        return prepare_voices(quiet)


def transcripts(folder):
    lines = [line for path in folder.rglob("*.trans.txt") for line in data.read_list(path)]
    return dict(line.split(" ", 1) for line in lines)


def test_the_folder(prepared):
    folder, recordings = prepared, data.read_folder(prepared)
    assert set(recordings.speakers) == {voice.name for voice in VOICES}
    count = {v.name: recordings.speakers.count(v.name) for v in VOICES}
    # activated, digits/7 and /8: not the repeat, the short, quiet and empty, beep or silence.
    assert all(count[f"asterisk-{lang}"] == 3 for lang in ("fr", "it", "ru"))
    assert count["asterisk-en-es"] == 6  # one speaker in two languages
    assert all(count[f"fillets-{lang}-{actor}"] == 2 for lang in ("cs", "nl") for actor in "vm")
    assert count["festvox-ru"] == 3
    assert not recordings.skipped
    texts = transcripts(folder)
    assert {"IT IS ACTIVE.", "SEVEN", "UNKNOWN"} <= set(texts.values())
    assert any(text.startswith("ВОЛОС") for text in texts.values())  # without the mark of stress
    reasons = [line.split("\t")[1] for line in data.read_list(folder / "SKIPPED.txt")]
    assert reasons.count("identical to another clip") >= 5
    assert reasons.count("shorter than 0.5 s") >= 5
    assert "peak under 0.01" in reasons
    assert any("lod-v-nothing" in line for line in data.read_list(folder / "SKIPPED.txt"))
    credits = (folder / "CREDITS.txt").read_text()
    assert "festvox-ru_9-1_all.deb" in credits
    assert "CC-BY-SA-3.0" in credits


def test_splits_and_phones(prepared):
    folder, recordings = prepared, data.read_folder(prepared)
    lists = [data.read_list(folder / f"{part}_split.txt") for part in ("train", "test")]
    train, test = data.split_by_lists(recordings, *lists)
    assert sorted(train.names + test.names) == sorted(recordings.names)
    pairs = zip(recordings.names, recordings.speakers, strict=True)
    # Both languages of one speaker are a chapter each, and the other speakers' ids are their own.
    chapters = {name.rsplit("-", 1)[0]: who for name, who in pairs}
    both = [c for c, who in chapters.items() if who == "asterisk-en-es"]
    assert both == ["1001-10010", "1001-10020"]
    assert chapters["1003-10030"] == "asterisk-fr"
    labels, names = data.read_alignments(folder / "phones_festvox_ru.txt")
    assert names == ("ay", "k", "pau")
    where = {name: i for i, name in enumerate(recordings.names)}
    for name, frames in labels.items():
        assert recordings.speakers[where[name]] == "festvox-ru"
        num_frames = int(recordings.lengths[where[name]]) // 160
        aligned = data.align(frames, num_frames, name)
        assert (aligned == data.UNLABELLED).sum() == 2
    # The labels shipped with cpc are found by the packages' own names of the prompts.
    english, _ = data.read_alignments(folder / "phones_asterisk_en.txt")
    texts = transcripts(folder)
    assert {texts[name] for name in english} == {"IT IS ACTIVE.", "SEVEN", "UNKNOWN"}
    assert {recordings.speakers[where[name]] for name in english} == {"asterisk-en-es"}


def test_the_command_prepares_once_and_again_after_damage(built, tmp_path, monkeypatch, capsys):
    mirror = tmp_path / "mirror"
    shutil.copytree(built, mirror, ignore=lambda *_: ["bin"])
    packages.fake_apt(mirror, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare_voices(quiet)
    assert not (tmp_path / "cache" / FOLDER_NAME).exists()
    assert main(["voices"]) == 0
    assert "fillets-nl-m" in capsys.readouterr().out
    assert is_prepared()
    assert not [*tmp_path.glob(f"cache/{FOLDER_NAME}.part*"), *tmp_path.glob("cache/unpacked-*")]
    folder = tmp_path / "cache" / FOLDER_NAME
    stamp = folder / "stamp.json"
    time, content = stamp.stat().st_mtime_ns, stamp.read_bytes()
    (mirror / "mode").write_text("offline")
    assert prepare_voices(pytest.fail) == folder
    assert stamp.stat().st_mtime_ns == time
    (mirror / "mode").write_text("ok")
    stamp.write_bytes(content.replace(b'"archives"', b'"archive"'))
    (folder / "SPEAKERS.TXT").unlink()
    assert prepare_voices(quiet) == folder
    assert stamp.read_bytes() == content
    assert (folder / "SPEAKERS.TXT").exists()


def test_decode_mixes_resamples_and_clips(tmp_path):
    tone = np.sin(2 * np.pi * 440 * np.arange(22_050) / 22_050)
    soundfile.write(tmp_path / "x.wav", np.stack([tone, 0 * tone], 1), 22_050, subtype="FLOAT")
    half = decode(tmp_path / "x.wav")
    assert (half.dtype, len(half)) == (np.int16, 16_000)
    assert abs(np.abs(half).max() / 32768 - 0.5) < 0.01
    soundfile.write(tmp_path / "x.wav", 3 * tone, 22_050, subtype="FLOAT")
    assert (decode(tmp_path / "x.wav").max(), decode(tmp_path / "x.wav").min()) == (32767, -32768)


def test_rules(tmp_path, monkeypatch):
    assert reason_to_drop(np.full(7999, 9999, np.int16)) == "shorter than 0.5 s"
    assert reason_to_drop(np.full(8000, 327, np.int16)) == "peak under 0.01"
    assert reason_to_drop(np.full(8000, -32768, np.int16)) is None
    (tmp_path / "x.lab").write_text("separator ;\n#\n0.342 125 pau\n0.392 125 k\n0.4 125 ay\n")
    assert festvox_phones(tmp_path / "x.lab") == ("pau",) * 34 + ("k",) * 5 + ("ay",)
    # The split of one version is that of the next.
    assert np.flatnonzero(_test_mask(40, 1)).tolist() == [5, 15, 21, 22, 24, 33]
    monkeypatch.setenv("CPC_DATA", str(tmp_path))
    (tmp_path / FOLDER_NAME).mkdir()
    for content in (b"{}", b"\xff", b'{"archives": 3}', b'{"archives": {}}'):
        (tmp_path / FOLDER_NAME / "stamp.json").write_bytes(content)
        assert not is_prepared()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"apt-get.*LibriSpeech.*synthetic"):
        prepare_voices(quiet)


@pytest.mark.network
def test_the_real_voices():
    """Fetches 306 MB the first time; the numbers of the packages as they are known."""
    recordings = data.read_folder(prepare_voices(log=quiet))
    count = {v.name: recordings.speakers.count(v.name) for v in VOICES}
    assert list(count.values()) == [551 + 502, 528, 535, 518, 620, 643, 682, 641, 680]
    assert 6.2 < recordings.lengths.sum() / 16_000 / 3600 < 6.3
