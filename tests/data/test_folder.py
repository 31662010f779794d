import os
import re
import struct
import sys
from unittest import mock

import numpy as np
import pytest
import soundfile
import soxr

from cpc import data
from cpc.data.audio_file import mp3_seconds
from cpc.data.recordings import measure_levels, to_int16
from cpc.types import UserError

RATE_HZ = 16_000


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


def streamed(recordings):
    """The first recording in 16 bits, as the pack holds it, and the number of its parts."""
    parts = list(recordings.stream(0, pytest.fail))
    levels = measure_levels(parts)
    return np.concatenate([to_int16(part, levels) for part in parts]), len(parts)


@pytest.fixture
def two_speakers(tmp_path):
    for i in range(12):
        write(tmp_path / "ann" / f"a{i}.wav", noise(0.5, seed=i))
        write(tmp_path / "bob" / "day1" / f"b{i}.flac", noise(0.5, seed=100 + i))
    return tmp_path


def test_any_tree_with_speakers(two_speakers):
    (two_speakers / "ann" / "notes.txt").write_text("no audio by its name: not looked at")
    recordings = data.read_folder(two_speakers)
    assert recordings.speakers == ("ann",) * 12 + ("bob",) * 12
    assert recordings.skipped == ()
    assert recordings.lengths.tolist() == [8000] * 24
    expected, _ = soundfile.read(two_speakers / "ann" / "a0.wav", dtype="int16")
    np.testing.assert_array_equal(recordings.read(0, 100, 300), expected[100:300])


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
    write(tmp_path / "ann" / "x.wav", noise(0.1, seed=1))
    write(tmp_path / "ann" / "x.flac", noise(0.1, seed=2))
    assert data.read_folder(tmp_path).names == ("ann/x.flac", "ann/x.wav")
    write(tmp_path / "bob" / "cafe\u0301.wav", noise(0.1, seed=3))
    recordings = data.read_folder(tmp_path)
    assert recordings.names[2] == "bob/caf\u00e9.wav"  # is compared with its accents composed
    (tmp_path / "list.txt").write_text("bob/cafe\u0301.wav\n", encoding="utf-8-sig")
    listed = data.read_list(tmp_path / "list.txt")
    assert data.split_by_lists(recordings, listed, ["ann/x.wav"])[0].names == ("bob/caf\u00e9.wav",)
    write(tmp_path / "bob" / "caf\u00e9.wav", noise(0.1, seed=4))
    assert len(set(data.read_folder(tmp_path).names)) == 2 + len([*(tmp_path / "bob").iterdir()])


def test_the_same_samples_by_two_endings_are_one_recording(tmp_path):
    """Apart, one would train and the other test."""
    write(tmp_path / "ann" / "x.wav", noise(0.1))
    write(tmp_path / "ann" / "x.flac", noise(0.1))
    write(tmp_path / "ann" / "SA1.WAV", noise(0.1, seed=2), format="WAV")
    write(tmp_path / "ann" / "SA1.WAV.wav", noise(0.1, seed=2), subtype="PCM_24")
    recordings = data.read_folder(tmp_path)
    assert recordings.names == ("SA1", "x")
    assert [reason.split("/")[-1] for _, reason in recordings.skipped] == ["SA1.WAV", "x.flac"]


@pytest.mark.parametrize("ending", ["mp3", "ogg", "opus"])
def test_a_lossy_copy_beside_a_recording_is_left_out(tmp_path, ending):
    """Encoded at another rate, too, and by encoders that delay: apart, one would test the other."""
    opus = {"format": "OGG", "subtype": "OPUS"} if ending == "opus" else {}
    folder = tmp_path / "ann"
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


@pytest.mark.parametrize(("ending", "file_format", "subtypes"), [
    ("aif", "AIFF", ("PCM_16", "PCM_24")), ("aiff", "AIFF", ("FLOAT",)),
    ("aifc", "AIFF", ("ULAW",)), ("au", "AU", ("ULAW",)), ("caf", "CAF", ("PCM_16", "ALAC_24")),
    ("w64", "W64", ("PCM_24",)), ("rf64", "RF64", ("PCM_16",)), ("sph", "NIST", ("ULAW",)),
    ("snd", "AU", ("PCM_16",)), ("wv1", "NIST", ("PCM_16",)),
])  # fmt: skip
def test_formats_beside_wav(tmp_path, ending, file_format, subtypes):
    for subtype in subtypes:
        for rate_hz, channels in ((RATE_HZ, 1), (44_100, 2)):
            folder, wave = tmp_path / f"{subtype}{rate_hz}", noise(1, rate_hz, channels)
            options = {"format": file_format, "subtype": subtype}
            file = write(folder / "ann" / f"whole.{ending}", wave, rate_hz, **options)
            write(folder / "bob" / "as.wav", wave, rate_hz, subtype="PCM_16")
            part = write(folder / "cut" / f"part.{ending}", wave, rate_hz, **options)
            part.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            recordings = data.read_folder(folder, max_skipped_fraction=0.5)
            whole, other = (recordings.read(i, 0, RATE_HZ).astype(int) for i in range(2))
            np.testing.assert_allclose(whole, other, atol=600 if subtype == "ULAW" else 2)
            np.testing.assert_array_equal(recordings.read(0, 300, 9000), whole[300:9000])
            np.testing.assert_allclose(streamed(recordings)[0], whole, atol=1)
            ((name, why),) = (*recordings.skipped, *recordings.shortened)
            assert name == str(part)
            assert "short" in why or "malformed" in why


def test_sound_that_is_not_read_is_listed(tmp_path):
    write(tmp_path / "a.wav", noise(0.1))
    listed = ("a.m4a", "b.M4A", "bob/c.wma", "a.mkv", "d.raw", "e.wv1", "f.snd", "g")
    known = ("bob/.d.aac", "bob/notes.txt", "a.TextGrid", "cover.jpg", "bob/LICENSE", "a.lab")
    for name in (*listed, *known):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"?" * 99)
    recordings = data.read_folder(tmp_path, max_skipped_fraction=0.0)
    reasons = dict(recordings.skipped)
    assert {name.removeprefix(f"{tmp_path}/") for name in reasons} == {*listed}
    assert "ffmpeg -i b.M4A b.flac" in reasons[f"{tmp_path}/b.M4A"]
    assert "a.wav" in reasons[f"{tmp_path}/a.m4a"]
    with pytest.raises(UserError, match=r"ffmpeg -i c\.wma c\.flac"):
        data.read_folder(tmp_path / "bob")


def test_a_damaged_file_changes_no_name(tmp_path):
    for i in range(20):
        write(tmp_path / ("ann", "bob")[i // 10] / f"{i % 10}.wav", noise(0.1, seed=i))
    whole = data.read_folder(tmp_path).names
    (tmp_path / "bob" / "3.wav").write_bytes(b"")
    assert data.read_folder(tmp_path).names == tuple(name for name in whole if name != "bob/3")


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


def test_a_chapter_of_librispeech_leaves_other_files_their_speakers(tmp_path):
    write_chapter(tmp_path / "84" / "100", "84")
    write(tmp_path / "84" / "101" / "84-101-0000.flac", noise(0.1, seed=5))  # without transcript
    for i, name in enumerate(("bob", "eve")):
        write(tmp_path / name / "x" / f"{name}.wav", noise(0.1, seed=7 + i))
    assert data.read_folder(tmp_path).speakers == ("84", "84", "84", "bob", "eve")


@pytest.mark.parametrize(("name", "rate_hz", "channels", "options"), [
    ("x.wav", 44_100, 2, {}), ("x.wav", 16_000, 2, {}),
    ("x.wav", 8_000, 1, {"subtype": "FLOAT"}), ("x.flac", 22_050, 1, {"subtype": "PCM_24"}),
    ("x.flac", 11_127, 1, {}), ("x.ogg", 22_050, 2, {"format": "OGG", "subtype": "VORBIS"}),
    ("x.mp3", 44_100, 1, {"format": "MP3", "subtype": "MPEG_LAYER_III"}),
    ("x.opus", 48_000, 1, {"format": "OGG", "subtype": "OPUS"}),
])  # fmt: skip
def test_windows_agree_with_the_whole_file(tmp_path, name, rate_hz, channels, options):
    path = write(tmp_path / "ann" / name, noise(3, rate_hz, channels), rate_hz, **options)
    recordings = data.read_folder(tmp_path)
    length = int(recordings.lengths[0])
    decoded, _ = soundfile.read(path, always_2d=True)
    expected = soxr.resample(decoded.mean(axis=1), rate_hz, RATE_HZ)
    assert abs(length - len(expected)) <= 1
    whole = recordings.read(0, 0, length)
    assert whole.dtype == np.int16
    common = min(length, len(expected))
    np.testing.assert_allclose(whole[:common] / 32768, expected[:common], atol=2e-3, rtol=0)
    for start, stop in ((0, 999), (7001, 20_001), (length - 1501, length), (30_000, 30_001)):
        window = recordings.read(0, start, stop)
        assert window.shape == (stop - start,)
        np.testing.assert_allclose(window.astype(int), whole[start:stop], atol=8, rtol=0)


def test_vorbis_seeks_to_the_sample(tmp_path):
    wave = noise(20, 8000)[:, 0]
    write(tmp_path / "ann" / "x.ogg", wave, 8000, format="OGG", subtype="VORBIS")
    recordings = data.read_folder(tmp_path)
    whole = recordings.read(0, 0, 320_000)
    for start in range(100, 319_000, 5999):
        window = recordings.read(0, start, start + 500)
        np.testing.assert_allclose(window, whole[start : start + 500], atol=8)


def test_bad_files_among_good_ones_are_skipped_and_listed(two_speakers):
    (two_speakers / "ann" / "empty.wav").touch()
    (two_speakers / "bob" / "text.flac").write_text("this is no audio at all")
    write(two_speakers / "bob" / "xnone.wav", np.zeros((0, 1)))
    recordings = data.read_folder(two_speakers, max_skipped_fraction=0.2)
    assert len(recordings) == 24
    names = [path.rsplit("/", 1)[1] for path, _ in recordings.skipped]
    assert names == ["empty.wav", "text.flac", "xnone.wav"]
    words = ("is empty", "is not audio", "no samples")
    assert all(word in why for word, (_, why) in zip(words, recordings.skipped, strict=True))
    with pytest.raises(UserError, match=r"3 of 27 .*10%"):
        data.read_folder(two_speakers)


def test_no_folder_and_no_audio(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        data.read_folder(tmp_path / "nowhere")
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(UserError, match="no recordings"):
        data.read_folder(tmp_path)


def test_names_that_are_no_text_are_skipped_and_listed(two_speakers):
    sound = (two_speakers / "ann" / "a0.wav").read_bytes()
    names = [b"caf\xe9.wav", b"two\nlines.wav", "gr\u00fcn.wav".encode()]
    for name, content in zip(names, (sound, b"", sound + b"\0"), strict=True):
        (two_speakers / "ann" / os.fsdecode(name)).write_bytes(content)
    recordings = data.read_folder(two_speakers)
    assert len(recordings) == 25
    assert "grün" in recordings.names
    (path, reason), (empty, _) = recordings.skipped
    assert path.endswith(r"caf\udce9.wav")
    assert "not valid UTF-8" in reason
    assert empty.endswith(r"two\nlines.wav")
    assert "\n" not in "".join(text for pair in recordings.skipped for text in pair)


def test_a_folder_whose_name_is_no_text_is_one_sentence(tmp_path):
    root = tmp_path / os.fsdecode(b"caf\xe9")
    root.mkdir()
    write(tmp_path / "x.wav", noise(0.1)).rename(root / "y.wav")
    with pytest.raises(UserError, match="not valid UTF-8") as caught:
        data.read_folder(root)
    str(caught.value).encode()
    (tmp_path / "link").symlink_to(root)  # gives it another name
    assert len(data.read_folder(tmp_path / "link")) == 1


def claim(path, num_frames):
    """Write a number of frames into the header of a FLAC: 36 bits."""
    content = bytearray(path.read_bytes())
    content[21] = content[21] & 0xF0 | num_frames >> 32
    content[22:26] = (num_frames & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(content)


def put(path, position, content):
    """Overwrite bytes of a file."""
    old = path.read_bytes()
    path.write_bytes(old[:position] + content + old[position + len(content) :])


def int32(value):
    return value.to_bytes(4, "little")


@pytest.mark.parametrize(("name", "harm", "words"), [
    ("x.flac", lambda path: claim(path, 2**36 - 1), "68,719,476,735"),
    ("x.wav", lambda path: put(path, 24, int32(999)), "999 Hz"),
    ("x.wav", lambda path: put(path, 24, int32(1_000_000)), "1000000 Hz"),
    ("x.wav", lambda path: put(path, 40, int32(0)), "32,044 bytes"),
])  # fmt: skip
def test_what_no_header_of_a_recording_says_is_skipped(two_speakers, name, harm, words):
    harm(write(two_speakers / "ann" / name, noise(1, seed=99)))
    ((_, reason),) = data.read_folder(two_speakers).skipped
    assert words in reason


def packed(root, said=None):
    log = (lambda _: None) if said is None else said.append
    return data.pack(data.read_folder(root), root.parent / "pack", log, max_skipped_fraction=0.5)


@pytest.mark.parametrize("rate_hz", [16_000, 22_050])
def test_a_flac_of_unknown_length_is_decoded_to_its_end(tmp_path, rate_hz):
    """The format allows 0, and encoders that write to a pipe leave it so."""
    path = write(tmp_path / "in" / "ann" / "x.flac", noise(1.3, rate_hz), rate_hz)
    whole = data.read_folder(tmp_path / "in")
    expected = whole.read(0, 0, 20_800)
    claim(path, 0)
    recordings = data.read_folder(tmp_path / "in")
    assert recordings.lengths.tolist() == whole.lengths.tolist() == [20_800]
    np.testing.assert_array_equal(recordings.read(0, 0, 20_800), expected)
    np.testing.assert_array_equal(recordings.read(0, 20_700, 20_800), whole.read(0, 20_700, 20_800))
    np.testing.assert_array_equal(packed(tmp_path / "in").read(0, 0, 20_800), expected)


def test_a_flac_of_a_few_samples_too_many_is_truncated(two_speakers):
    claim(write(two_speakers / "ann" / "x.flac", noise(1, seed=99)), 20_000)
    ((name, reason),) = packed(two_speakers).skipped
    assert name == "x"
    assert "20,000" in reason


@pytest.mark.parametrize(("value", "rate_hz"), [(np.nan, 16_000), (-np.inf, 44_100)])
def test_what_is_not_finite_is_skipped_and_said(two_speakers, value, rate_hz):
    wave = noise(1, rate_hz, channels=2)
    wave[rate_hz // 4, 1] = value
    write(two_speakers / "ann" / "x.wav", wave, rate_hz, subtype="FLOAT")
    recordings = data.read_folder(two_speakers)
    index = recordings.names.index("x")
    for start, stop in ((0, 16_000), (3000, 5000)):
        with pytest.raises(UserError, match=r"first at 0\.250 s"):
            recordings.read(index, start, stop)
    ((name, reason),) = packed(two_speakers).skipped
    assert name == "x"
    assert "first at 0.250 s" in reason


@pytest.mark.parametrize(("name", "options", "what"), [
    ("x.wav", {}, "promises 32,000 bytes, and there are 15,978"),
    ("x.ogg", {"format": "OGG", "subtype": "VORBIS"}, "last page"),
    ("x.opus", {"format": "OGG", "subtype": "OPUS"}, "last page"),
    ("x.mp3", {"format": "MP3", "subtype": "MPEG_LAYER_III"}, "samples decode"),
])  # fmt: skip
def test_half_a_file_is_kept_and_said(tmp_path, name, options, what):
    seconds = 1 if name == "x.wav" else 3
    path = write(tmp_path / "in" / "ann" / name, noise(seconds), **options)
    content, said = path.read_bytes(), []
    assert not packed(tmp_path / "in").shortened
    path.write_bytes(content[: len(content) // 2])
    recordings = packed(tmp_path / "in", said)
    ((file, missing),) = recordings.shortened
    assert file.rsplit("/", 1)[-1] in (name, "x")
    assert what in missing
    assert any(missing in line for line in said)
    assert not recordings.skipped
    (length,) = recordings.lengths.tolist()
    assert 4000 < length < 16_000 * seconds * 0.7
    again = packed(tmp_path / "in")
    assert again.shortened == recordings.shortened
    assert again.read(0, 0, length).std() > 1000


@pytest.mark.parametrize(("name", "subtype", "what"), [
    ("x.ogg", "VORBIS", "first of its streams"), ("x.opus", "OPUS", "first of its streams"),
    ("x.mp3", "MPEG_LAYER_III", r"3\.0 of its 6\.\d s"),
])  # fmt: skip
def test_joined_files_are_kept_and_what_is_unread_is_said(tmp_path, name, subtype, what):
    path = tmp_path / "in" / "ann" / name
    form = {"format": "MP3" if name == "x.mp3" else "OGG", "subtype": subtype}
    content = b"".join(write(path, noise(3, seed=i), **form).read_bytes() for i in range(2))
    tag = b"ID3\4\0\0\0\0\2\0" + b"\xff\xfb\x90\x00" * 64 if name == "x.mp3" else b""
    path.write_bytes(tag + content)
    recordings = data.read_folder(tmp_path / "in")
    assert recordings.lengths.tolist() == [48_000]
    ((_, missing),) = recordings.shortened
    assert re.search(what, missing)


def test_an_mp3_of_several_rates_without_their_sum_is_said_to_be_read_in_part(tmp_path):
    """It is taken to have the first frame's bit rate, here that of noise, before silence."""
    path, wave = tmp_path / "in" / "ann" / "x.mp3", noise(20, 48_000)
    wave[48_000:] *= 1e-4
    path.parent.mkdir(parents=True)
    form = {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "VARIABLE"}
    with soundfile.SoundFile(path, "w", 48_000, 1, **form) as sound:
        sound.write(wave[::-1])
    content = path.read_bytes()
    assert not data.read_folder(tmp_path / "in").shortened
    path.write_bytes(content[content.index(content[:2], content.index(b"Xing")) :])
    ((_, missing),) = data.read_folder(tmp_path / "in").shortened
    assert re.search(r"only \d+\.\d of its 20\.\d s are read", missing)


def test_what_is_damaged_within_is_kept_and_said(tmp_path):
    folder = tmp_path / "in" / "ann"
    path = write(folder / "x.ogg", noise(3), format="OGG", subtype="VORBIS")
    content = path.read_bytes()
    for part, what in ((3, "pages? or more are missing|page or more are missing"), (2, "decode")):
        path.write_bytes(content)
        put(path, len(content) // part, bytes(20))
        recordings = packed(tmp_path / "in")
        ((_, missing),) = recordings.shortened
        assert re.search(what, missing)
        assert recordings.lengths[0] < 48_000
    path.unlink()
    path = write(folder / "x.mp3", noise(20), format="MP3", subtype="MPEG_LAYER_III")
    whole = packed(tmp_path / "in").read(0, 0, 3 * 65_536)
    put(path, path.stat().st_size // 2, bytes(3000))
    recordings = packed(tmp_path / "in")
    assert recordings.lengths.tolist() == [2 * 65_536]
    assert "131,072 of 320,000 samples decode" in recordings.shortened[0][1]
    np.testing.assert_array_equal(recordings.read(0, 0, 2 * 65_536), whole[: 2 * 65_536])


def test_a_wav_from_a_pipe_is_whole_and_one_of_terabytes_cut_short(tmp_path):
    for promised in (0xFFFFFFFF, 0x7FFFF024, 0x80000000):
        put(write(tmp_path / "in" / "ann" / "x.wav", noise(1)), 40, int32(promised))
        recordings = packed(tmp_path / "in")
        assert recordings.lengths.tolist() == [16_000]
        assert not recordings.shortened
    path = write(tmp_path / "in" / "ann" / "x.wav", noise(1), format="RF64")
    put(path, 20, struct.pack("<3Q", 4 << 40, 4 << 40, 2 << 40))
    recordings = packed(tmp_path / "in")
    assert recordings.lengths.tolist() == [16_000]
    assert "4,398,046,511,104 bytes" in recordings.shortened[0][1]


def test_what_a_decoder_raises_is_a_reason(two_speakers, monkeypatch):
    recordings = data.read_folder(two_speakers)
    for kind in (MemoryError, ValueError, OverflowError):
        fails = mock.Mock(side_effect=kind)
        monkeypatch.setattr("soundfile.SoundFile.read", fails)
        with pytest.raises(UserError, match=r"a0\.wav"):
            recordings.read(0, 0, 100)


def test_links_in_circles_end(two_speakers):
    """Two links of two folders to each other are 2^40 paths."""
    for folder, other in (("ann", "bob"), ("bob", "ann")):
        for i in range(2):
            (two_speakers / folder / f"{i}").symlink_to(two_speakers / other)
            (two_speakers / folder / f"up{i}").symlink_to(two_speakers)
    (two_speakers / "self").symlink_to("self")
    recordings = data.read_folder(two_speakers)
    assert recordings.speakers == ("ann",) * 12 + ("bob",) * 12
    reasons = [reason for _, reason in recordings.skipped]
    assert sum("links to a folder that is read already" in reason for reason in reasons) == 8
    assert len(reasons) == 9  # and the link to itself, which is no folder


def test_hidden_folders_are_passed_over_and_links_lead_out(two_speakers, tmp_path_factory):
    """DataLad keeps recordings in .git and has links to them where they are seen."""
    kept = two_speakers / ".git" / "annex" / "objects" / "a0.wav"
    kept.parent.mkdir(parents=True)
    (two_speakers / "ann" / "a0.wav").rename(kept)
    (two_speakers / "ann" / "a0.wav").symlink_to("../.git/annex/objects/a0.wav")
    recordings = data.read_folder(two_speakers)
    assert recordings.speakers == ("ann",) * 12 + ("bob",) * 12
    assert recordings.skipped == ()
    other = tmp_path_factory.mktemp("other")
    write(other / "c.wav", noise(0.1, seed=77))
    for name in ("cyd", "dan"):
        (two_speakers / name).symlink_to(other)
    recordings = data.read_folder(two_speakers)
    assert recordings.speakers[-1] == "cyd"
    assert recordings.skipped[0][0].endswith("dan")
    two_speakers.rename(two_speakers.with_name(".cache"))  # the folder asked for is looked into
    assert len(data.read_folder(two_speakers.with_name(".cache"))) == 25


def test_what_may_not_be_read_is_counted_and_what_is_no_file_never_opened(
    two_speakers, monkeypatch
):
    write(two_speakers / "cyd" / "c.wav", noise(0.1, seed=77))
    scan = os.scandir

    def refuse(folder):
        if str(folder).endswith("cyd"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    ((folder, reason),) = data.read_folder(two_speakers).skipped
    assert folder.endswith("cyd")
    assert "Permission denied" in reason
    with pytest.raises(UserError, match="1 of 25 recordings"):
        data.read_folder(two_speakers, max_skipped_fraction=0.0)
    monkeypatch.undo()
    os.mkfifo(two_speakers / "ann" / "fifo.wav")
    (two_speakers / "ann" / "zero.wav").symlink_to("/dev/zero")
    (two_speakers / "ann" / "gone.wav").symlink_to("nowhere")
    reasons = [reason for _, reason in data.read_folder(two_speakers, 1, 0.2).skipped]
    assert ["is no file" in reason for reason in reasons] == [True, False, True]
    assert "No such file" in reasons[1]


@pytest.mark.parametrize("rate_hz", [16_000, 44_100, 11_127])
def test_a_stream_has_the_samples_of_the_whole_file(tmp_path, monkeypatch, rate_hz):
    """The resampler's state goes on from part to part: not a bit differs, wherever they are cut."""
    write(tmp_path / "ann" / "x.wav", noise(2, rate_hz, 2), rate_hz)
    recordings = data.read_folder(tmp_path)
    whole = recordings.read(0, 0, int(recordings.lengths[0]))
    for values in (2**20, 2 * 4999, 4 * rate_hz, rate_hz):
        monkeypatch.setattr("cpc.data.audio_file.BLOCK_VALUES", values)
        samples, num_parts = streamed(recordings)
        assert num_parts == -(-2 * rate_hz // (values // 2))
        np.testing.assert_array_equal(samples, whole)


def voice(peak, rate_hz=RATE_HZ, seed=0):
    """Noise of a voice's distribution: a few large samples among many small ones."""
    wave = noise(2, rate_hz, seed=seed)[:, 0] ** 3
    return peak * wave / np.abs(wave).max()


def pack_one(tmp_path, wave, rate_hz=RATE_HZ, **options):
    """A recording next to a sound one, packed: its samples, rms and the sentences on it."""
    write(tmp_path / "in" / "ann" / "x.wav", wave, rate_hz, **options)
    write(tmp_path / "in" / "ann" / "good.wav", noise(1, seed=9))
    recordings = data.pack_folder(tmp_path / "in", tmp_path / "pack", lambda _: None)
    said = [reason for name, reason in (*recordings.skipped, *recordings.shortened) if "x" in name]
    if "x" not in recordings.names:
        return None, 0.0, said
    index = recordings.names.index("x")
    samples = recordings.read(index, 0, int(recordings.lengths[index])) / 32768
    unpacked = data.read_folder(tmp_path / "in")
    np.testing.assert_allclose(unpacked.read(index, 99, 999) / 32768, samples[99:999], atol=3e-4)
    return samples, float(recordings.rms[index]), said


@pytest.mark.parametrize(("peak", "subtype"), [(0.9, "FLOAT"), (1.2, "DOUBLE"), (7.9, "FLOAT")])
def test_a_recording_beyond_full_scale_is_scaled_and_listed(tmp_path, peak, subtype):
    wave = voice(peak)
    samples, _, said = pack_one(tmp_path, wave, subtype=subtype)
    assert np.corrcoef(samples, wave)[0, 1] > 0.99999
    assert np.abs(samples).max() <= 1
    assert [f"{peak:.4g} times" in one for one in said] == [True] * (peak > 1)


def test_a_resampler_beyond_full_scale_does_not_clip(tmp_path):
    """A square wave at full scale overshoots; only its scale changes, which is not listed."""
    wave = 0.999 * np.sign(np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100))
    samples, _, said = pack_one(tmp_path, wave, 44_100)
    expected = soxr.resample(wave, 44_100, RATE_HZ)
    assert np.abs(expected).max() > 1.05
    assert np.corrcoef(samples, expected)[0, 1] > 0.99999
    assert not said


@pytest.mark.parametrize(("offset", "subtype"), [(-0.5, "PCM_16"), (0.01, "FLOAT")])
def test_a_constant_offset_is_subtracted_and_listed(tmp_path, offset, subtype):
    wave = noise(2)[:, 0] * 0.0135 / 0.1
    samples, rms, said = pack_one(tmp_path, wave + offset, subtype=subtype)
    np.testing.assert_allclose(rms, 0.0135, rtol=1e-3)
    np.testing.assert_allclose(samples, wave - wave.mean(), atol=6e-5)
    assert ["constant offset" in one for one in said] == [True]


def test_a_small_offset_stays_and_one_beyond_full_scale_does_not(tmp_path):
    wave = noise(2)[:, 0]
    samples, _, said = pack_one(tmp_path / "small", wave + 0.005)  # 0.1 % of its loudness
    np.testing.assert_allclose(samples, wave + 0.005, atol=6e-5)
    assert not said
    for peak in (5.0, 0.5):
        wave = voice(peak) + 2
        samples, _, said = pack_one(tmp_path / f"{peak}", wave, subtype="FLOAT")
        assert np.corrcoef(samples, wave)[0, 1] > 0.99999
        assert abs(samples.mean()) < 1e-3
        assert any("constant offset" in one for one in said)


@pytest.mark.parametrize(("wave", "subtype"), [
    (np.zeros(16_000), "PCM_16"), (np.zeros((16_000, 2)), "PCM_16"),
    (np.full(16_000, 0.3), "FLOAT"), (np.full(16_000, 0.3), "PCM_16"), (1e-6 * noise(1), "FLOAT"),
])  # fmt: skip
def test_silence_is_left_out_and_listed(tmp_path, wave, subtype):
    samples, _, said = pack_one(tmp_path, wave, subtype=subtype)
    assert samples is None
    assert "silent" in said[0]


def test_copies_under_other_names_and_formats_are_left_out(tmp_path):
    same = (32768 * noise(1)).astype(np.int16)
    for name, subtype in (("b.flac", "PCM_16"), ("c.wav", "PCM_24"), ("d.aiff", "PCM_16")):
        write(tmp_path / "in" / "ann" / name, same, subtype=subtype)
    write(tmp_path / "in" / "bob" / "e.wav", same / 32768, subtype="FLOAT")
    (tmp_path / "in" / "bob" / "f.flac").write_bytes((tmp_path / "in/ann/b.flac").read_bytes())
    write(tmp_path / "in" / "bob" / "other.wav", noise(1, seed=1))
    for _ in range(2):  # the second time from the pack
        recordings = data.pack_folder(tmp_path / "in", tmp_path / "pack", lambda _: None)
        assert recordings.names == ("b", "other")
        assert [name for name, _ in recordings.skipped] == ["c", "d", "e", "f"]
        assert all("b" in reason for _, reason in recordings.skipped)


def test_a_recording_that_16_bits_lose_is_listed(tmp_path):
    samples, _, said = pack_one(tmp_path, voice(3e-4), subtype="FLOAT")
    assert samples is not None
    assert ["16 bits" in one for one in said] == [True]
    assert not pack_one(tmp_path / "other", voice(3e-4))[2]  # it had no more
    write(tmp_path / "far" / "x.wav", 3e4 * noise(0.1), subtype="FLOAT")  # is no square wave
    with pytest.raises(UserError, match=r"x\.wav has samples of up to [\d,]+, and full scale is 1"):
        data.read_folder(tmp_path / "far").read(0, 0, 100)


@pytest.mark.parametrize(("gain", "rate_hz"), [(-1.0, 16_000), (-0.97, 44_100)])
def test_channels_that_cancel_are_not_averaged(tmp_path, gain, rate_hz):
    wave = noise(2, rate_hz)[:, 0]
    samples, _, said = pack_one(tmp_path, np.stack([wave, gain * wave], 1), rate_hz)
    expected = soxr.resample(wave, rate_hz, RATE_HZ)
    np.testing.assert_allclose(samples, expected, atol=2e-3)
    assert ["channel 1 is read alone" in one for one in said] == [True]
    for channels in (2, 32):
        wave = noise(1, channels=channels)
        samples, _, said = pack_one(tmp_path / f"{channels}", wave)
        np.testing.assert_allclose(samples, wave.mean(axis=1), atol=6e-5)
        assert not said


def test_a_long_recording_is_packed_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["cpc.data.pack"], "SAMPLES_AT_ONCE", 20_000)
    monkeypatch.setattr("cpc.data.audio_file.BLOCK_VALUES", 5_000)
    for i, seconds in enumerate((0.2, 3, 1, 0.1)):
        write(tmp_path / "in" / "ann" / f"{i}.wav", noise(seconds, 22_050, seed=i), 22_050)
    broken = write(tmp_path / "in" / "ann" / "2a.flac", noise(4, seed=8))
    broken.write_bytes(broken.read_bytes()[:50_000])
    source, recordings = data.read_folder(tmp_path / "in"), packed(tmp_path / "in")
    assert recordings.names == ("0", "1", "2", "3")
    for i, name in enumerate(recordings.names):
        length = int(recordings.lengths[i])
        expected = source.read(source.names.index(name), 0, length)
        np.testing.assert_array_equal(recordings.read(i, 0, length), expected)
        assert recordings.rms is not None
        np.testing.assert_allclose(recordings.rms[i], np.sqrt(np.mean((expected / 32768) ** 2)))


#: MPEG 1, layer III, 128 kbit/s at 44.1 kHz: 1,152 samples in 417 bytes.
FRAME = bytes([0xFF, 0xFB, 0x90, 0]) + bytes(413)


def test_a_file_may_end_inside_of_a_header():
    """The first frame is not counted, as another one has to follow."""
    for num_bytes in (0, 1, 2, 3, 4, 417):
        expected = (1 + (num_bytes >= 4)) * 1152 / 44_100
        assert mp3_seconds(2 * FRAME + FRAME[:num_bytes]) == pytest.approx(expected)
