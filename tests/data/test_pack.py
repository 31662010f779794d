import dataclasses
import json
import os
import sys
import zlib
from unittest import mock

import numpy as np
import pytest
import soundfile
from packages import quiet

from cpc import data, files
from cpc.data.recordings import read_windows
from cpc.types import UserError


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(20):
        path = tmp_path / "in" / "ab"[i % 2] / f"u{i:02d}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.1 * rng.standard_normal(3000 + 100 * i).clip(-5, 5), 16_000)
    return tmp_path / "in"


def test_pack_holds_the_same_samples_and_sums_a_block_once(folder, tmp_path, monkeypatch):
    source, said = data.read_folder(folder), []
    monkeypatch.setattr(sys.modules["cpc.data.pack"], "PROGRESS_SECONDS", -1)
    packed = data.pack(source, tmp_path / "pack", log=said.append)
    assert "packed 20 of 20 utterances (100%)" in said[-1]
    assert packed.names == source.names
    assert packed.speakers == source.speakers
    for i, length in enumerate(source.lengths):
        expected = source.read(i, 0, int(length))
        np.testing.assert_array_equal(packed.read(i, 0, int(length)), expected)
        np.testing.assert_array_equal(packed.read(i, 500, 900), expected[500:900])
        np.testing.assert_allclose(packed.rms[i], np.sqrt(np.mean((expected / 32768) ** 2)))
    few = data.select(packed, [7, 2, 11])
    rows, starts = np.array([2, 0, 2, 1]), np.array([5, 0, 1999, 7])
    pairs = zip(rows.tolist(), starts.tolist(), strict=True)
    monkeypatch.setattr("zlib.crc32", lambda *_: pytest.fail("summed again"))
    found = read_windows(few, rows, starts, 1000)
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found, np.stack([few.read(i, s, s + 1000) for i, s in pairs]))
    read_windows(packed, np.arange(20), np.full(20, 100), 2500)
    assert not packed.read(19, 4, 4).size


def test_truncated_flacs_are_skipped_listed_and_counted(folder, tmp_path):
    for i in (0, 2, 4):
        path = folder / "a" / f"u{i:02d}.flac"
        path.write_bytes(path.read_bytes()[:2000])
    source = data.read_folder(folder)
    assert len(source) == 20  # the headers are whole
    with pytest.raises(UserError, match="3 of 20"):
        data.pack(source, tmp_path / "pack", log=quiet)
    assert not (tmp_path / "pack").exists()
    for _ in range(2):  # the second time from the pack
        packed = data.pack(source, tmp_path / "pack", quiet, max_skipped_fraction=0.5)
        assert [name for name, _ in packed.skipped] == ["u00", "u02", "u04"]
        with pytest.raises(UserError, match="3 of 20"):
            data.pack(source, tmp_path / "pack", log=quiet)


def test_interrupted_pack_is_made_anew(folder, tmp_path):
    source = data.read_folder(folder)
    for name in ("pack.part-old", "pack.part-young"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples.int16").write_bytes(b"half")
    os.utime(tmp_path / "pack.part-old" / "samples.int16", (1e9, 1e9))
    fails = mock.Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        data.pack(dataclasses.replace(source, stream=fails), tmp_path / "pack", log=quiet)
    assert not (tmp_path / "pack").exists()
    assert len(data.pack(source, tmp_path / "pack", log=quiet)) == 20
    # Folders of a process killed long ago are removed. A young one may still be written.
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "pack", "pack.part-young"]


def test_a_pack_that_another_finished_meanwhile_is_used(folder, tmp_path):
    source = data.read_folder(folder)
    samples = tmp_path / "pack" / "samples.int16"
    made = []

    def stream(index, note):
        if index == 7:
            data.pack(source, tmp_path / "pack", log=quiet)
            made.append(samples.stat().st_ino)
        return source.stream(index, note)

    packed = data.pack(dataclasses.replace(source, stream=stream), tmp_path / "pack", quiet)
    assert made == [samples.stat().st_ino]
    for one in (packed, data.pack(source, tmp_path / "pack", log=pytest.fail)):
        np.testing.assert_array_equal(one.read(3, 0, 99), source.read(3, 0, 99))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "pack"]


@pytest.mark.parametrize(("name", "content", "words"), [
    ("index.json", b'{"version": 1, "na', "damaged"), ("index.json", b"[" * 100_000, "damaged"),
    ("index.json", json.dumps(files.seal({"version": 2})).encode(), "of another version"),
    ("samples.crc32", b"0" * 8, "checksums"), ("samples.int16", b"1234", "truncated"),
])  # fmt: skip
def test_a_damaged_pack_is_packed_again(folder, tmp_path, name, content, words):
    source, said = data.read_folder(folder), []
    data.pack(source, tmp_path / "pack", said.append)
    (tmp_path / "pack" / name).write_bytes(content)
    packed = data.pack(source, tmp_path / "pack", said.append)
    np.testing.assert_array_equal(packed.read(0, 0, 999), source.read(0, 0, 999))
    assert [line.split()[0] for line in said] == ["packing", "the", "packing"]
    assert words in said[1]


def test_a_pack_that_cannot_be_written_is_one_sentence(folder, tmp_path):
    (tmp_path / "pack").write_text("mine")
    source = data.read_folder(folder)
    with pytest.raises(UserError, match="cannot write the pack"):
        data.pack(source, tmp_path / "pack", log=quiet)
    assert (tmp_path / "pack").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2
    fails = mock.Mock(side_effect=UserError("does not decode"))
    broken = dataclasses.replace(source, stream=fails)
    with pytest.raises(UserError, match="nothing to pack"):
        data.pack(broken, tmp_path / "none", quiet, max_skipped_fraction=1.0)


def test_a_folder_that_is_as_it_was_is_not_read_again(folder, tmp_path, monkeypatch):
    module = sys.modules["cpc.data.pack"]
    first = module.pack_folder(folder, tmp_path / "pack", quiet)
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_folder", lambda *_: pytest.fail("read again"))
        os.utime(tmp_path / "pack" / "samples.int16")  # as in a copy of the pack
        patch.setattr(zlib, "crc32", sums := mock.Mock(side_effect=zlib.crc32))
        again = module.pack_folder(folder, tmp_path / "pack", quiet)
        for name in ("names", "speakers", "skipped"):
            assert getattr(again, name) == getattr(first, name)
        summed = sum(len(call.args[0]) for call in sums.call_args_list)
        assert summed < (tmp_path / "pack" / "samples.int16").stat().st_size / 2
        np.testing.assert_array_equal(again.read(3, 0, 999), first.read(3, 0, 999))
    # Files that came since are listed, without packing again: the recordings are the same.
    (folder / "b" / "film.mp4").touch()
    for _ in range(2):  # read again, then as it was
        packed = module.pack_folder(folder, tmp_path / "pack", pytest.fail)
        assert [name for name, _ in packed.skipped] == [str(folder / "b" / "film.mp4")]
    (folder / "b" / "film.mp4").unlink()
    assert module.pack_folder(folder, tmp_path / "pack", pytest.fail).skipped == ()


@pytest.mark.parametrize("change", ["new", "touched", "options", "pack", "listing"])
def test_a_folder_that_changed_is_read_again(folder, tmp_path, change):
    module = sys.modules["cpc.data.pack"]
    first, options, said = module.pack_folder(folder, tmp_path / "pack", quiet), {}, []
    if change == "new":
        soundfile.write(folder / "b" / "v.flac", np.linspace(-0.1, 0.1, 4000), 16_000)
    elif change == "touched":
        soundfile.write(folder / "b" / "u01.flac", np.linspace(-0.1, 0.1, 3100), 16_000)
    elif change == "options":
        options = {"max_skipped_fraction": 0.2}
    elif change == "listing":
        (tmp_path / "pack" / "listing.txt").write_bytes(b"\xff\xfe")
    else:  # packed meanwhile from other recordings
        source = data.read_folder(folder)
        data.pack(data.select(source, [0]), tmp_path / "pack", quiet)
    again = module.pack_folder(folder, tmp_path / "pack", said.append, **options)
    assert any("have changed" in line for line in said) == (change in "new touched pack")
    data.pack(data.read_folder(folder), tmp_path / "pack", log=pytest.fail)
    assert len(again) == 20 + (change == "new")
    same = np.array_equal(again.read(10, 0, 99), first.read(10, 0, 99))
    assert same == (change != "touched")


def rot(path, position):
    """Flip a bit and keep the time of change, as a disk does."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(("position", "how"), [(3, "read"), (70_000, "windows"), (-1, "read")])
def test_rot_is_found_by_the_first_read_and_packed_anew(
    folder, tmp_path, monkeypatch, position, how
):
    source, said = data.read_folder(folder), []
    data.pack(source, tmp_path / "pack", said.append)
    rot(tmp_path / "pack" / "samples.int16", position)
    packed = data.pack(source, tmp_path / "pack", said.append)
    position %= 2 * int(source.lengths.sum())
    index = int(np.searchsorted(np.cumsum(source.lengths), position // 2, side="right"))
    length = int(packed.lengths[index])

    def read():
        if how == "read":
            return packed.read(index, 0, length)
        return read_windows(packed, np.array([9, index]), np.array([0, 0]), length)

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", mock.Mock(side_effect=PermissionError(13, "denied")))
        with pytest.raises(UserError, match="remove that folder"):
            read()
    with pytest.raises(UserError, match=rf"pack {tmp_path}/pack is damaged .* repack"):
        read()
    again = data.pack(source, tmp_path / "pack", said.append)
    assert [line.split()[0] for line in said] == ["packing", "the", "packing"]
    for i, length in enumerate(source.lengths.tolist()):
        np.testing.assert_array_equal(again.read(i, 0, length), source.read(i, 0, length))
    with pytest.raises(UserError, match="is damaged"):  # the new pack stays
        read()
    data.pack(source, tmp_path / "pack", log=pytest.fail)
