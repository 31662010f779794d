import os

import numpy as np
import pytest
import soundfile
import soxr

from cpc import data
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


@pytest.fixture
def two_speakers(tmp_path):
    for i in range(12):
        write(tmp_path / "ann" / f"a{i}.wav", noise(0.5, seed=i))
        write(tmp_path / "bob" / "day1" / f"b{i}.flac", noise(0.5, seed=100 + i))
    return tmp_path


def test_any_tree_with_speakers(two_speakers):
    (two_speakers / "ann" / "notes.txt").write_text("no audio by its name: not looked at")
    recordings = data.read_folder(two_speakers)
    assert len(recordings) == 24
    assert recordings.speakers == ("ann",) * 12 + ("bob",) * 12
    assert recordings.skipped == ()
    assert (recordings.lengths == 8000).all()
    expected, _ = soundfile.read(two_speakers / "ann" / "a0.wav", dtype="int16")
    np.testing.assert_array_equal(recordings.read(0, 100, 300), expected[100:300])


def test_speaker_level(tmp_path):
    write(tmp_path / "monday" / "ann" / "x.wav", noise(0.1, seed=1))
    write(tmp_path / "monday" / "bob" / "x.wav", noise(0.1, seed=2))
    recordings = data.read_folder(tmp_path, speaker_level=2)
    assert recordings.speakers == ("ann", "bob")
    assert recordings.names == ("monday/ann/x", "monday/bob/x")  # names repeat: paths
    with pytest.raises(UserError, match="level 3"):
        data.read_folder(tmp_path, speaker_level=3)


def test_same_name_with_two_endings(tmp_path):
    write(tmp_path / "ann" / "x.wav", noise(0.1, seed=1))
    write(tmp_path / "ann" / "x.flac", noise(0.1, seed=2))
    assert data.read_folder(tmp_path).names == ("ann/x.flac", "ann/x.wav")


def test_flat_folder_is_one_speaker(tmp_path):
    write(tmp_path / "me" / "x.wav", noise(0.1))
    assert data.read_folder(tmp_path / "me").speakers == ("me",)


def test_librispeech_tree(tmp_path):
    root = tmp_path / "LibriSpeech"
    for subset, speaker in (("train-clean-100", "103"), ("test-clean", "61")):
        chapter = root / subset / speaker / "1240"
        for i in range(2):
            write(chapter / f"{speaker}-1240-000{i}.flac", noise(0.2, seed=int(speaker) + i))
        (chapter / f"{speaker}-1240.trans.txt").write_text(
            f"{speaker}-1240-0000 CHAPTER ONE\n{speaker}-1240-0001 UNKNOWN\n"
        )
    (root / "SPEAKERS.TXT").write_text(
        ";ID |SEX| SUBSET |MINUTES| NAME\n103 | F | train-clean-100 | 20 | Karen Savage\n"
        "61 | M | test-clean | 8 | Karen Savage\n60 | M | x | 8 | |CBW|Simon\n"
    )
    recordings = data.read_folder(root)
    # Two readers of one name keep their ids.
    assert recordings.speakers == ("Karen Savage (61)",) * 2 + ("Karen Savage (103)",) * 2
    assert recordings.names[-1] == "103-1240-0001"
    one_subset = data.read_folder(root / "train-clean-100")
    assert one_subset.speakers == ("Karen Savage (103)",) * 2
    (root / "SPEAKERS.TXT").unlink()
    assert data.read_folder(root).speakers == ("61", "61", "103", "103")


@pytest.mark.parametrize(
    ("name", "rate_hz", "channels", "options"),
    [
        ("x.wav", 44_100, 2, {}),
        ("x.wav", 16_000, 2, {}),
        ("x.wav", 16_000, 1, {"subtype": "FLOAT"}),
        ("x.wav", 8_000, 1, {}),
        ("x.flac", 22_050, 1, {"subtype": "PCM_24"}),
        ("x.flac", 11_127, 1, {}),
        ("x.ogg", 22_050, 2, {"format": "OGG", "subtype": "VORBIS"}),
        ("x.mp3", 44_100, 1, {"format": "MP3", "subtype": "MPEG_LAYER_III"}),
        ("x.opus", 48_000, 1, {"format": "OGG", "subtype": "OPUS"}),
    ],
)
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
        worst = np.abs(window.astype(int) - whole[start:stop]).max()
        assert worst <= 8, f"{worst} of 32768 at {start}"


@pytest.mark.parametrize("loudness", [1e-5, 1.0])
def test_vorbis_seeks_to_the_sample(tmp_path, loudness):
    wave = loudness * noise(20, 8000)[:, 0]
    write(tmp_path / "ann" / "x.ogg", wave, 8000, format="OGG", subtype="VORBIS")
    recordings = data.read_folder(tmp_path)
    whole = recordings.read(0, 0, 320_000)
    for start in range(100, 319_000, 1999):
        np.testing.assert_allclose(
            recordings.read(0, start, start + 500), whole[start : start + 500], atol=8
        )


def test_the_loud_is_clipped_not_wrapped(tmp_path):
    wave = np.full(16_000, 1.5)
    write(tmp_path / "ann" / "x.wav", wave, subtype="FLOAT")
    assert (data.read_folder(tmp_path).read(0, 0, 16_000) == 32767).all()


def test_bad_files_among_good_ones_are_skipped_and_listed(two_speakers):
    (two_speakers / "ann" / "empty.wav").touch()
    (two_speakers / "bob" / "text.flac").write_text("this is no audio at all")
    recordings = data.read_folder(two_speakers)
    assert len(recordings) == 24
    assert [path.rsplit("/", 1)[1] for path, _ in recordings.skipped] == ["empty.wav", "text.flac"]
    assert "is empty" in recordings.skipped[0][1]
    assert "is not audio" in recordings.skipped[1][1]


def test_too_many_bad_files(two_speakers):
    for i in range(3):
        (two_speakers / "ann" / f"empty{i}.wav").touch()
    with pytest.raises(UserError, match=r"3 of 27 .* more than 10%"):
        data.read_folder(two_speakers)
    assert len(data.read_folder(two_speakers, max_skipped_fraction=0.2)) == 24


def test_header_without_samples(two_speakers):
    write(two_speakers / "ann" / "none.wav", np.zeros((0, 1)))
    ((path, reason),) = data.read_folder(two_speakers).skipped
    assert path.endswith("none.wav")
    assert "no samples" in reason


def test_copies_are_removed_and_listed(two_speakers):
    original = two_speakers / "ann" / "a3.wav"
    (two_speakers / "bob" / "again.wav").write_bytes(original.read_bytes())
    recordings = data.read_folder(two_speakers)
    assert len(recordings) == 24
    ((path, reason),) = recordings.skipped
    assert path.endswith("again.wav")
    assert "is a copy of" in reason
    assert "a3.wav" in reason


def test_truncated_file_names_itself_when_read(tmp_path):
    path = write(tmp_path / "ann" / "x.flac", noise(2))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    recordings = data.read_folder(tmp_path)
    with pytest.raises(UserError, match=r"x\.flac"):
        recordings.read(0, 0, int(recordings.lengths[0]))


def test_no_folder_and_no_audio(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        data.read_folder(tmp_path / "nowhere")
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(UserError, match="no recordings"):
        data.read_folder(tmp_path)


def test_names_that_are_no_text_are_skipped_and_listed(two_speakers):
    sound = (two_speakers / "ann" / "a0.wav").read_bytes()
    names = [b"caf\xe9.wav", b"two\nlines.wav", "gr\u00fcn.wav".encode()]
    for number, name in enumerate(names):
        path = two_speakers / "ann" / os.fsdecode(name)
        path.write_bytes((sound, b"", sound + b"\0")[number])
    recordings = data.read_folder(two_speakers)
    assert len(recordings) == 25
    (path, reason), (empty, _) = recordings.skipped
    assert path.endswith(r"caf\udce9.wav")
    assert "not valid UTF-8" in reason
    assert empty.endswith(r"two\nlines.wav")
    assert "grün" in recordings.names
    "".join(text for pair in recordings.skipped for text in pair).encode()
    assert all("\n" not in text for pair in recordings.skipped for text in pair)


def test_a_folder_whose_name_is_no_text_is_one_sentence(tmp_path):
    root = tmp_path / os.fsdecode(b"caf\xe9")
    write(tmp_path / "x.wav", noise(0.1)).rename(tmp_path / "y.wav")
    root.mkdir()
    (tmp_path / "y.wav").rename(root / "y.wav")
    with pytest.raises(UserError, match="not valid UTF-8") as caught:
        data.read_folder(root)
    str(caught.value).encode()
    # A link gives it another name.
    (tmp_path / "link").symlink_to(root)
    assert len(data.read_folder(tmp_path / "link")) == 1
