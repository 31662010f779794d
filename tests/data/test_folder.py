import os
import re
import struct
import sys
from collections import defaultdict
from unittest import mock

import numpy as np
import pytest
import soundfile
import soxr
from packages import quiet, refuse

from cpc import data
from cpc.data.recordings import measure_levels, to_int16
from cpc.types import UserError

RATE_HZ = 16_000
OPUS, VORBIS = ({"format": "OGG", "subtype": name} for name in ("OPUS", "VORBIS"))


def noise(seconds, rate_hz=RATE_HZ, channels=1, seed=0):
    """Noise without the highest tenth of the band, where resamplers differ by design."""
    rng = np.random.default_rng(seed)
    length = round(seconds * rate_hz)
    spectrum = np.fft.rfft(rng.standard_normal((length, channels)), axis=0)
    hertz = np.fft.rfftfreq(length, 1 / rate_hz)
    spectrum[hertz > 0.4 * min(rate_hz, RATE_HZ)] = 0
    wave = np.fft.irfft(spectrum, length, axis=0)
    return 0.1 * wave / wave.std()


def write(path, wave, rate_hz=RATE_HZ, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave, rate_hz, **options)
    return path


@pytest.fixture
def two_speakers(tmp_path):
    for i in range(12):
        write(tmp_path / "ann" / f"a{i}.wav", noise(0.5, seed=i))
        write(tmp_path / "bob" / "day1" / f"b{i}.flac", noise(0.5, seed=100 + i))
    return tmp_path


def test_any_tree_with_speakers(two_speakers, monkeypatch):
    kept = two_speakers / ".git" / "annex" / "a0.wav"  # as DataLad keeps recordings
    kept.parent.mkdir(parents=True)
    (two_speakers / "ann" / "a0.wav").rename(kept)
    (two_speakers / "ann" / "a0.wav").symlink_to("../.git/annex/a0.wav")
    recordings = data.read_folder(two_speakers)
    assert recordings.speakers == ("ann",) * 12 + ("bob",) * 12
    assert recordings.skipped == ()
    assert recordings.lengths.tolist() == [8000] * 24
    expected, _ = soundfile.read(two_speakers / "ann" / "a0.wav", dtype="int16")
    np.testing.assert_array_equal(recordings.read(0, 100, 300), expected[100:300])
    write(two_speakers / "cyd" / "c.wav", noise(0.1, seed=77))
    refuse(monkeypatch, "cyd")
    ((folder, _),) = data.read_folder(two_speakers).skipped
    assert folder.endswith("cyd")
    with pytest.raises(UserError, match="1 of 25 recordings"):
        data.read_folder(two_speakers, max_skipped_fraction=0.0)


def test_speaker_level(tmp_path):
    for seed, name in enumerate(("ann", "bob")):
        write(tmp_path / "monday" / name / "x.wav", noise(0.1, seed=seed))
    recordings = data.read_folder(tmp_path, speaker_level=2)
    assert recordings.speakers == ("ann", "bob")
    assert recordings.names == ("monday/ann/x", "monday/bob/x")  # names repeat: paths
    with pytest.raises(UserError, match="level 3"):
        data.read_folder(tmp_path, speaker_level=3)
    assert data.read_folder(tmp_path / "monday" / "ann").speakers == ("ann",)


def test_names_with_other_endings_or_accents(tmp_path):
    for seed, name in enumerate(("ann/x.wav", "ann/x.flac", "bob/cafe\u0301.wav")):
        write(tmp_path / name, noise(0.1, seed=seed))
    for name, options in (("SA1.WAV", {"format": "WAV"}), ("SA1.WAV.wav", {"subtype": "PCM_24"})):
        write(tmp_path / "ann" / name, noise(0.1, seed=5), **options)
    recordings = data.read_folder(tmp_path)  # compares names with their accents composed
    assert recordings.names == ("ann/SA1.WAV", "ann/x.flac", "ann/x.wav", "bob/caf\u00e9.wav")
    ((copy, reason),) = recordings.skipped  # kept, one would train and the other test
    assert reason == f"{copy} has the sound of {tmp_path}/ann/SA1.WAV"
    (tmp_path / "list.txt").write_text("bob/cafe\u0301.wav\n", encoding="utf-8-sig")
    listed = data.read_list(tmp_path / "list.txt")
    assert data.split_by_lists(recordings, listed, ["ann/x.wav"])[0].names == ("bob/caf\u00e9.wav",)
    write(tmp_path / "bob" / "caf\u00e9.wav", noise(0.1, seed=4))
    assert len(set(data.read_folder(tmp_path).names)) == 3 + len([*(tmp_path / "bob").iterdir()])


@pytest.mark.parametrize("ending", ["mp3", "opus"])
def test_a_lossy_copy_beside_a_recording_is_left_out(tmp_path, ending):
    """The copy may have another rate or an encoder delay. If kept, it could be test data."""
    opus, folder = OPUS if ending == "opus" else {}, tmp_path / "ann"
    for i, (seconds, delay, rate_hz) in enumerate([(0.5, 0, 16_000), (3, 0.07, 48_000)]):
        wave = noise(seconds, seed=i)
        write(folder / f"{i}.wav", wave)
        late = np.concatenate([np.zeros((round(delay * RATE_HZ), 1)), wave])
        write(folder / f"{i}.{ending}", soxr.resample(late, RATE_HZ, rate_hz), rate_hz, **opus)
    write(folder / "2.wav", noise(1, seed=2))
    write(folder / f"2.{ending}", noise(1, seed=3), **opus)  # another recording
    write(folder / "3.wav", noise(1, seed=4))
    write(folder / f"3.{ending}", noise(1, seed=4)[:12_000], **opus)  # a part of it
    recordings = data.read_folder(tmp_path)
    both = {f"ann/{i}.{end}" for i in "23" for end in ("wav", ending)}
    assert set(recordings.names) == {"ann/0.wav", "ann/1.wav"} | both
    pairs = [(f"{folder}/{i}.{ending}", f"{folder}/{i}.wav") for i in "01"]
    assert recordings.skipped == tuple((a, f"{a} has the sound of {b}") for a, b in pairs)


def test_sound_that_is_not_read_is_listed(tmp_path):
    write(tmp_path / "a.wav", noise(0.1))
    listed = ("a.m4a", "bob/c.wma", "d.raw", "e.wv1", "f.snd")
    for name in (*listed, "a.TextGrid", "cover.jpg", "a.lab"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"?" * 99)
    recordings = data.read_folder(tmp_path, max_skipped_fraction=0.0)
    reasons = {name.removeprefix(f"{tmp_path}/"): why for name, why in recordings.skipped}
    assert reasons.keys() == {*listed}
    assert "a.wav" in reasons["a.m4a"]
    with pytest.raises(UserError, match=r"ffmpeg -i c\.wma c\.flac"):
        data.read_folder(tmp_path / "bob")


def write_chapter(chapter, speaker, number=2):
    """Recordings of a chapter of LibriSpeech, with their transcripts."""
    for i in range(number):
        write(chapter / f"{speaker}-{chapter.name}-000{i}.flac", noise(0.2, seed=int(speaker) + i))
    lines = f"{speaker}-{chapter.name}-0000 CHAPTER ONE\n{speaker}-{chapter.name}-0001 UNKNOWN\n"
    (chapter / f"{speaker}-{chapter.name}.trans.txt").write_text(lines)


def test_librispeech_tree(tmp_path, monkeypatch):
    root = tmp_path / "LibriSpeech"
    for subset, speaker in (("train-clean-100", "103"), ("test-clean", "61")):
        write_chapter(root / subset / speaker / "1240", speaker)
    (root / "SPEAKERS.TXT").write_text(
        ";ID |SEX| SUBSET |MINUTES| NAME\n103 | F | train-clean-100 | 20 | Karen Savage\n"
        "61 | M | test-clean | 8 | Karen Savage\n60 | M | x | 8 | |CBW|Simon\n"
    )
    recordings = data.read_folder(root)
    # Two readers of one name keep their ids.
    assert recordings.speakers == ("Karen Savage (61)",) * 2 + ("Karen Savage (103)",) * 2
    assert recordings.names[-1] == "103-1240-0001"
    for below, speaker in (("train-clean-100", "Karen Savage (103)"), ("test-clean/61", "61")):
        monkeypatch.chdir(root / below)
        for path in (".", root / below):
            assert data.read_folder(path).speakers == (speaker,) * 2
    (root / "SPEAKERS.TXT").unlink()
    assert data.read_folder(root).speakers == ("61", "61", "103", "103")
    # A chapter leaves other files their speakers; one without its transcript is known by its files.
    folder = tmp_path / "84"
    write_chapter(folder / "84" / "100", "84")
    write(folder / "84" / "101" / "84-101-0000.flac", noise(0.1, seed=5))
    for i, name in enumerate(("bob", "eve")):
        write(folder / name / "x" / f"{name}.wav", noise(0.1, seed=7 + i))
    assert data.read_folder(folder).speakers == ("84", "84", "84", "bob", "eve")


@pytest.mark.parametrize(("name", "rate_hz", "channels", "options"), [
    ("x.wav", 16_000, 2, {}), ("x.wav", 8_000, 1, {"subtype": "FLOAT"}),
    ("x.flac", 11_127, 1, {"subtype": "PCM_24"}), ("x.mp3", 44_100, 1, {"format": "MP3"}),
    ("x.ogg", 8_000, 1, VORBIS), ("x.opus", 48_000, 1, OPUS),
    *((f"x.{ending}", 44_100, 2, {"format": form, "subtype": kind}) for ending, form, kind in (
        ("aif", "AIFF", "PCM_24"), ("aiff", "AIFF", "FLOAT"), ("aifc", "AIFF", "ULAW"),
        ("au", "AU", "ULAW"), ("caf", "CAF", "ALAC_24"), ("w64", "W64", "PCM_24"),
        ("rf64", "RF64", "PCM_16"), ("sph", "NIST", "ULAW"), ("snd", "AU", "PCM_16"),
        ("wv1", "NIST", "PCM_16"),
    )),
])  # fmt: skip
def test_windows_agree_with_the_whole_file(tmp_path, name, rate_hz, channels, options):
    """Also in the last page of Vorbis, where a seek comes to another place."""
    wave = noise(20 if name == "x.ogg" else 3, rate_hz, channels)
    path = write(tmp_path / "ann" / name, wave, rate_hz, **options)
    recordings = data.read_folder(tmp_path)
    length = int(recordings.lengths[0])
    decoded, _ = soundfile.read(path, always_2d=True)
    expected = soxr.resample(decoded.mean(axis=1), rate_hz, RATE_HZ)
    assert abs(length - len(expected)) <= 1
    whole = recordings.read(0, 0, length)
    assert whole.dtype == np.int16
    common = min(length, len(expected))
    np.testing.assert_allclose(whole[:common] / 32768, expected[:common], atol=2e-3, rtol=0)
    starts = range(100, length - 501, 5999)
    for start, stop in ((7001, 20_001), (length - 1501, length), *((i, i + 500) for i in starts)):
        window = recordings.read(0, start, stop)
        assert window.shape == (stop - start,)
        np.testing.assert_allclose(window.astype(int), whole[start:stop], atol=8, rtol=0)
    if channels == 1:
        return
    parts = list(recordings.stream(0, pytest.fail))
    samples = [to_int16(part, measure_levels(parts)) for part in parts]
    np.testing.assert_allclose(np.concatenate(samples), whole, atol=1)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    recordings = data.read_folder(tmp_path, max_skipped_fraction=1.0)
    ((_, why),) = (*recordings.skipped, *recordings.shortened)
    assert "truncated" in why or "malformed" in why


def claim(path, num_frames):
    """Write a number of frames into the header of a FLAC: 36 bits."""
    content = bytearray(path.read_bytes())
    content[21] = content[21] & 0xF0 | num_frames >> 32
    content[22:26] = (num_frames & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(content)


def harm(content, position, change=bytes(20)):
    """Overwrite bytes of a file."""
    return content[:position] + change + content[position + len(change) :]


def int32(value):
    return value.to_bytes(4, "little")


def test_bad_files_among_good_ones_are_skipped_and_listed(two_speakers):
    """And keep their names from others."""
    sound = (two_speakers / "ann" / "a0.wav").read_bytes()
    for name, content in (
        ("ann/caf\udce9\n.wav", sound), ("ann/e.wav", b""), ("bob/a0.flac", b"this is no audio"),
        ("bob/h.wav", harm(sound, 24, int32(999))), ("bob/i.wav", harm(sound, 24, int32(10**6))),
        ("bob/j.wav", harm(sound, 40, int32(0))),
    ):  # fmt: skip
        (two_speakers / name).write_bytes(content)
    os.mkfifo(two_speakers / "bob" / "f.wav")
    claim(write(two_speakers / "bob" / "w.flac", noise(1, seed=99)), 2**36 - 1)
    write(two_speakers / "bob" / "x.wav", np.zeros((0, 1)))
    recordings = data.read_folder(two_speakers, max_skipped_fraction=0.3)
    assert (len(recordings), recordings.names[0]) == (24, "ann/a0")
    for (path, why), (name, words) in zip(recordings.skipped, {
        r"ann/caf\udce9\n.wav": "not valid UTF-8", "ann/e.wav": "is empty",
        "bob/a0.flac": "is not audio", "bob/f.wav": "not a regular file", "bob/h.wav": "999 Hz",
        "bob/i.wav": "1000000 Hz", "bob/j.wav": "16,044 bytes", "bob/w.flac": "68,719,476,735",
        "bob/x.wav": "no samples",
    }.items(), strict=True):  # fmt: skip
        assert path == f"{two_speakers}/{name}"
        assert words in why
        assert "\n" not in why
    with pytest.raises(UserError, match=r"9 of 33 .*10%"):
        data.read_folder(two_speakers)
    with pytest.raises(UserError, match="nowhere"):
        data.read_folder(two_speakers / "nowhere")
    (two_speakers / "none").mkdir()
    with pytest.raises(UserError, match="no recordings"):
        data.read_folder(two_speakers / "none")


def packed(root, said=None):
    log = quiet if said is None else said.append
    return data.pack(data.read_folder(root), root.parent / "pack", log, max_skipped_fraction=0.5)


def test_a_flac_of_unknown_length_is_decoded_to_its_end(tmp_path):
    """The format allows 0, and encoders that write to a pipe leave it so."""
    path = write(tmp_path / "in" / "ann" / "x.flac", noise(1.3, 22_050), 22_050)
    whole = data.read_folder(tmp_path / "in")
    expected = whole.read(0, 0, 20_800)
    claim(path, 0)
    recordings = data.read_folder(tmp_path / "in")
    assert recordings.lengths.tolist() == whole.lengths.tolist() == [20_800]
    np.testing.assert_array_equal(recordings.read(0, 0, 20_800), expected)
    np.testing.assert_array_equal(packed(tmp_path / "in").read(0, 0, 20_800), expected)


def test_what_is_not_finite_is_skipped_and_said(two_speakers):
    wave = noise(1, 44_100, channels=2)
    wave[44_100 // 4, 1] = -np.inf
    write(two_speakers / "ann" / "x.wav", wave, 44_100, subtype="FLOAT")
    recordings = data.read_folder(two_speakers)
    with pytest.raises(UserError, match=r"first at 0\.250 s"):
        recordings.read(recordings.names.index("x"), 3000, 5000)
    ((name, reason),) = packed(two_speakers).skipped
    assert name == "x"
    assert "first at 0.250 s" in reason


def of_many_rates(path):
    """An MP3 of several bit rates, noise and near silence, without its number of frames."""
    wave = noise(20, 48_000)
    wave[48_000:] *= 1e-4
    write(path, wave[::-1], 48_000, format="MP3", bitrate_mode="VARIABLE")
    content = path.read_bytes()
    assert not data.read_folder(path.parent).shortened
    return content[content.index(content[:2], content.index(b"Xing")) :]


def test_files_that_are_read_in_part_are_kept_and_said(tmp_path):
    """Halves, files that were joined, damage within, and sizes that a header promises."""
    forms = {"wav": {}, "ogg": VORBIS, "mp3": {"format": "MP3"}}

    def encode(ending, seconds, seed, **options):
        path, options = tmp_path / f"x.{ending}", forms[ending] | options
        return write(path, noise(seconds, seed=seed), **options).read_bytes()

    wav, ogg, mp3 = encode("wav", 1, 0), encode("ogg", 3, 0), encode("mp3", 3, 0)
    long, rf64 = encode("mp3", 20, 3), encode("wav", 1, 4, format="RF64")
    tag = b"ID3\4\0\0\0\0\2\0" + b"\xff\xfb\x90\x00" * 64
    # Content, part of the reason in `skipped`, and the number of samples that are read.
    files = {
        "half.wav": (wav[: len(wav) // 2], "32,000 bytes and it has 15,978", 7989),
        "half2.ogg": (ogg[: len(ogg) // 2], "last page", range(4000, 33_000)),
        "half3.mp3": (mp3[: len(mp3) // 2], "samples decode", range(4000, 33_000)),
        "twice2.ogg": (encode("ogg", 3, 5) + encode("ogg", 3, 6), "first of its streams", 48_000),
        "twice3.mp3": (tag + encode("mp3", 3, 7) + mp3, r"3\.0 of its 6\.\d s", 48_000),
        "rates.mp3": (of_many_rates(tmp_path / "m" / "x.mp3"), r"\d of its 20\.\d s are", None),
        "page.ogg": (harm(ogg, len(ogg) // 3), "pages? or more", range(48_000)),
        "inner.ogg": (harm(ogg, len(ogg) // 2), "decode", range(48_000)),
        "inner3.mp3": (harm(long, len(long) // 2, bytes(3000)), "131,072 of 320,000", 131_072),
        "huge.wav": (harm(rf64, 20, struct.pack("<3Q", 4 << 40, 4 << 40, 2 << 40)),
                     "4,398,046,511,104 bytes", 16_000),
        **{f"pipe{size}.wav": (harm(encode("wav", 1, size % 99), 40, int32(size)), "", 16_000)
           for size in (0xFFFFFFFF, 0x7FFFF024, 0x80000000)},
    }  # fmt: skip
    for name, (content, _, _) in files.items():
        (tmp_path / "in" / "ann").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "ann" / name).write_bytes(content)
    claim(write(tmp_path / "in" / "ann" / "long.flac", noise(1, seed=99)), 20_000)
    said = []
    recordings, again = packed(tmp_path / "in", said), packed(tmp_path / "in")
    ((name, reason),) = recordings.skipped
    assert name == "long"
    assert "20,000" in reason
    assert again.shortened == recordings.shortened
    assert all(any(why in line for line in said) for _, why in recordings.shortened)
    reasons = defaultdict(str)
    for path, why in recordings.shortened:
        reasons[path.rsplit("/")[-1].split(".")[0]] += why
    for name, (_, words, number) in files.items():
        stem = name.split(".")[0]
        assert bool(words) == (stem in reasons)
        assert re.search(words, reasons[stem]), name
        index = recordings.names.index(stem)
        length = int(recordings.lengths[index])
        assert number is None or length in np.atleast_1d(number), (name, length)
        assert recordings.read(index, 0, length).std() > 1000 * (stem != "rates")


def test_what_a_decoder_raises_is_a_reason(two_speakers, monkeypatch):
    recordings = data.read_folder(two_speakers)
    for kind in (MemoryError, ValueError, OverflowError):
        fails = mock.Mock(side_effect=kind)
        monkeypatch.setattr("soundfile.SoundFile.read", fails)
        with pytest.raises(UserError, match=r"a0\.wav"):
            recordings.read(0, 0, 100)


def voice(peak, rate_hz=RATE_HZ, seed=0):
    """Noise of a voice's distribution: a few large samples among many small ones."""
    wave = noise(2, rate_hz, seed=seed)[:, 0] ** 3
    return peak * wave / np.abs(wave).max()


WAVES = [noise(2, seed=seed)[:, 0] for seed in range(9)]
TONE = 0.999 * np.sign(np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100))
SQUARE, LOW = soxr.resample(TONE, 44_100, RATE_HZ), noise(2, 44_100, seed=20)[:, 0]
MANY = noise(1, channels=32, seed=21)


def stack(wave, gain):
    return np.stack([wave, gain * wave], axis=1)


#: Sound, its rate and subtype, the samples that are kept or None, and part of the reason.
LEVELS = {
    "soft": (voice(0.9), 16_000, "FLOAT", voice(0.9), ""),
    "loud": (voice(7.9, seed=1), 16_000, "DOUBLE", voice(1, seed=1), "7.9 times"),
    # A square wave at full scale overshoots when resampled; only its scale changes.
    "square": (TONE, 44_100, "PCM_16", SQUARE / np.abs(SQUARE).max(), ""),
    "offset": (0.135 * WAVES[0] - 0.5, 16_000, "PCM_16", 0.135 * WAVES[0], "constant offset"),
    "small": (WAVES[2] + 0.005, 16_000, "PCM_16", WAVES[2] + 0.005, ""),  # 5 % of its loudness
    "beyond": (voice(5, seed=2) + 2, 16_000, "FLOAT", voice(1, seed=2), "constant offset"),
    "above": (voice(0.5, seed=3) + 2, 16_000, "FLOAT", voice(0.5, seed=3), "constant offset"),
    "faint": (voice(3e-4, seed=4), 16_000, "FLOAT", voice(3e-4, seed=4), "16 bits"),
    "faint2": (voice(3e-4, seed=5), 16_000, "PCM_16", voice(3e-4, seed=5), ""),  # it had no more
    "balanced": (stack(WAVES[3], -0.99), 16_000, "PCM_16", WAVES[3], "only channel 1 is read"),
    "balanced2": (stack(LOW, -0.97), 44_100, "PCM_16", soxr.resample(LOW, 44_100, RATE_HZ),
                  "only channel 1 is read"),
    "stereo": (MANY[:, :2] / 9, 16_000, "PCM_16", MANY[:, :2].mean(axis=1) / 9, ""),
    "many": (MANY, 16_000, "PCM_16", MANY.mean(axis=1), ""),
    "silence": (np.zeros((16_000, 2)), 16_000, "PCM_16", None, "silent"),
    "constant": (np.full(16_000, 0.3), 16_000, "PCM_16", None, "silent"),
    "nothing": (1e-6 * noise(1), 16_000, "FLOAT", None, "silent"),
}  # fmt: skip


def test_levels_are_brought_into_16_bits_and_listed(tmp_path):
    for name, (wave, rate_hz, subtype, _, _) in LEVELS.items():
        write(tmp_path / "in" / "ann" / f"{name}.wav", wave, rate_hz, subtype=subtype)
    recordings = packed(tmp_path / "in")
    source = data.read_folder(tmp_path / "in")
    said = [*recordings.skipped, *recordings.shortened]
    for name, (_, _, _, kept, words) in LEVELS.items():
        reasons = [reason for one, reason in said if one == name]
        assert bool(reasons) == bool(words), (name, reasons)
        assert any(words in one for one in reasons) == bool(words), (name, reasons)
        assert (name in recordings.names) == (kept is not None)
        if kept is None:
            continue
        index, sound = recordings.names.index(name), kept - kept.mean() * ("offset" in words)
        samples = recordings.read(index, 0, int(recordings.lengths[index])) / 32768
        atol = 2e-3 if name in ("loud", "square", "beyond", "above", "balanced2") else 1e-4
        np.testing.assert_allclose(samples, sound, atol=atol, err_msg=name)
        rms = np.sqrt(np.mean(samples**2))
        np.testing.assert_allclose(recordings.rms[index], rms, rtol=1e-3, err_msg=name)
        other = source.read(source.names.index(name), 99, 999) / 32768
        np.testing.assert_allclose(other, samples[99:999], atol=3e-4, err_msg=name)
    write(tmp_path / "far" / "x.wav", 3e4 * noise(0.1), subtype="FLOAT")
    with pytest.raises(UserError, match=r"x\.wav has samples up to [\d,]+, but full scale is 1"):
        data.read_folder(tmp_path / "far").read(0, 0, 100)


def test_copies_under_other_names_and_formats_are_left_out(tmp_path):
    same = (32768 * noise(1)).astype(np.int16)
    for name, subtype in (("b.flac", "PCM_16"), ("c.wav", "PCM_24"), ("d.aiff", "PCM_16")):
        write(tmp_path / "in" / "ann" / name, same, subtype=subtype)
    write(tmp_path / "in" / "bob" / "e.wav", same / 32768, subtype="FLOAT")
    (tmp_path / "in" / "bob" / "f.flac").write_bytes((tmp_path / "in/ann/b.flac").read_bytes())
    write(tmp_path / "in" / "bob" / "a.wav", noise(1, seed=1))
    for log in (quiet, pytest.fail):  # the second time from the pack
        recordings = data.pack_folder(tmp_path / "in", tmp_path / "pack", log)
        assert recordings.names == ("b", "a")
        assert [name for name, _ in recordings.skipped] == ["c", "d", "e", "f"]
        assert all("b" in reason for _, reason in recordings.skipped)


def test_a_long_recording_is_packed_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["cpc.data.pack"], "SAMPLES_AT_ONCE", 20_000)
    monkeypatch.setattr("cpc.data.audio_file.BLOCK_VALUES", 5_000)
    for i, seconds in enumerate((0.2, 3, 1, 0.1)):
        write(tmp_path / "in" / "ann" / f"{i}.wav", noise(seconds, 22_050, seed=i), 22_050)
    broken = write(tmp_path / "in" / "ann" / "2a.flac", noise(4, seed=8))
    broken.write_bytes(broken.read_bytes()[:50_000])
    source, recordings = data.read_folder(tmp_path / "in"), packed(tmp_path / "in")
    assert recordings.names == ("0", "1", "2", "3")
    assert recordings.lengths.tolist() == np.delete(source.lengths, 3).tolist()
    for i, name in enumerate(recordings.names):
        length = int(recordings.lengths[i])
        expected = source.read(source.names.index(name), 0, length)
        np.testing.assert_array_equal(recordings.read(i, 0, length), expected)
        assert recordings.rms is not None
        np.testing.assert_allclose(recordings.rms[i], np.sqrt(np.mean((expected / 32768) ** 2)))
