import errno
import itertools
import json
import os
import stat
import zipfile

import numpy as np
import pytest
from ml_collections import ConfigDict

from cpc import files
from cpc.results import read_run, read_scores
from cpc.types import UserError
from experiments import status


def test_failed_replacement_keeps_the_old_file(tmp_path):
    path = tmp_path / "deep" / "a.json"
    files.write_json(path, {"step": 1})
    with pytest.raises(ZeroDivisionError), files.replacing(path) as part:  # noqa: PT012
        part.write_text("half")
        assert files.read_json(path) == {"step": 1}
        raise ZeroDivisionError
    assert files.read_json(path) == {"step": 1}
    assert list(path.parent.iterdir()) == [path]


def test_content_is_synced_before_the_name(tmp_path, monkeypatch):
    happened = []

    def note(number):
        status = os.fstat(number)
        happened.append("folder" if stat.S_ISDIR(status.st_mode) else status.st_size)

    monkeypatch.setattr(os, "fsync", note)
    files.write_sealed(tmp_path / "a.json", {}, is_durable=True)
    assert happened == [(tmp_path / "a.json").stat().st_size, "folder"]
    files.write_sealed(tmp_path / "b.json", {})  # reproducible files are not synced
    assert len(happened) == 2


def test_every_flipped_bit_of_a_sealed_file_is_detected(tmp_path):
    value = {"speaker": "grün", "sums": [0.1, 1e-300, None], "deep": {"on": True}, "seed": 3}
    path = tmp_path / "sealed.json"
    files.write_sealed(path, value)
    assert files.read_json(path) == value
    content, silent = path.read_bytes(), []
    for position, bit in itertools.product(range(len(content)), range(8)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            found = files.read_json(path)
        except UserError:
            continue
        if found != value:  # another space between tokens changes nothing
            silent.append((position, bit))
    assert not silent


def test_json_has_plain_values(tmp_path):
    value = {"a": np.float32(0.5), "b": (1, np.nan), 3: np.arange(2), "c": ConfigDict({"d": 1})}
    files.write_json(tmp_path / "a.json", value)  # not sealed
    assert files.read_json(tmp_path / "a.json") == files.plain(value)
    wanted = {"a": 0.5, "b": [1, None], "3": [0, 1], "c": {"d": 1}}
    assert json.loads((tmp_path / "a.json").read_text()) == wanted == files.plain(value)
    config = ConfigDict({"a": {"b": 1, "c": {}}, "d": (2,)})
    assert files.flatten(config) == {"a.b": 1, "d": (2,)}
    assert files.flatten({"a": {"b": 1}}, "/") == {"a/b": 1}


def write_inflating(path, claimed, size, number=1):
    """Write zeros whose header claims `claimed` float32 values, with `size` bytes of data."""
    header = repr({"descr": "<f4", "fortran_order": False, "shape": (claimed,)}).encode()
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(number):
            with archive.open(f"{i}.npy", "w") as entry:
                entry.write(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
                entry.write(bytes(size))


def test_arrays_round_trip(tmp_path):
    path = tmp_path / "a.npz"
    files.write_arrays(path, x=np.arange(3), names=np.array(["a"]))
    assert files.read_arrays(path)["x"].tolist() == [0, 1, 2]
    cut = path.read_bytes()[:50]
    np.save(tmp_path / "a.npy", np.zeros(3))  # not an archive
    np.savez(path, x=np.arange(3000))
    shorter = path.read_bytes().replace(b"(3000,)", b"(2000,)")  # a flipped bit in a header
    write_inflating(path, 10**12, 40)
    for content in (path.read_bytes(), cut, shorter, (tmp_path / "a.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.npz"):
            files.read_arrays(path)


def test_arrays_above_the_limit_are_rejected(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    write_inflating(path, 10**6, 4 * 10**6, number=2)
    assert files.read_arrays(path)["1"].shape == (10**6,)
    monkeypatch.setattr(files, "MAX_ARRAY_BYTES", 7 * 10**6)  # below their sum
    monkeypatch.setattr(np, "load", lambda *args, **options: pytest.fail("decompressed"))
    with pytest.raises(UserError, match=r"a\.npz .*8,000,256 bytes.* 7,000,000"):
        files.read_arrays(path)
    monkeypatch.setattr(files, "MAX_INFLATION", 10_000)  # large files may exceed it
    with pytest.raises(pytest.fail.Exception, match="decompressed"):
        files.read_arrays(path)


def test_fifos_are_not_opened(tmp_path):
    """Opening one would wait forever."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.json", "metrics.jsonl", "scores.json", "scores.npz", "log.txt"):
        os.mkfifo(run / name)
    (run / "state.json").write_text('{"state": "failed"}')
    for read in (files.read_text, files.read_lines):
        with pytest.raises(OSError, match="not a regular file"):
            read(run / "metrics.jsonl")
    for read in (files.read_json, files.read_sealed, files.read_arrays):
        with pytest.raises(UserError, match=r"scores\.npz"):
            read(run / "scores.npz")
    assert files.read_object(run / "config.json", []) is None
    assert read_scores(run) == []
    problems = "".join(read_run(run).problems)
    assert all(name in problems for name in ("config.json", "metrics.jsonl"))
    assert [row.name for row in status.read_all(tmp_path)] == ["run"]


def test_json_with_64_bit_integers_and_surrogate_pairs_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[9223372036854775807, -9223372036854775808, "\\ud83d\\ude00", 1e400, NaN]')
    *known, infinite, missing = files.read_json(path)
    assert known == [2**63 - 1, -(2**63), "\U0001f600"]
    assert np.isnan([infinite, missing]).all()
    for content in (None, b"{", b"\xff\xfe{}"):
        path.unlink()
        if content:
            path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.json"):
            files.read_json(path)
        path.touch()


@pytest.mark.parametrize(
    "value", ["1" * 400, "-9223372036854775809", '"\\uDFFF\\uD800"', '{"\\udead": 1}']
)
def test_unprintable_json_is_damaged(tmp_path, value):
    path = tmp_path / "a.json"
    path.write_text(f'{{"a": {value}}}')
    with pytest.raises(UserError, match=r"a\.json"):
        files.read_json(path)
    line = f'{{"step": 1, "split": "train", "a": {value}}}'
    (tmp_path / "metrics.jsonl").write_text(f'{line}\n{{"step": 2, "split": "train"}}\n')
    run = read_run(tmp_path)
    assert (run.metrics.step.tolist(), len(run.problems)) == ([2], 1)


def test_failed_write_names_the_file(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(OSError, match="No space left") as full, files.replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as on a full disk
    assert full.value.filename == str(path)
    path.mkdir()
    with pytest.raises(IsADirectoryError) as folder:
        files.write_text(path, "a")
    assert (folder.value.filename, folder.value.filename2) == (str(path), None)
    with pytest.raises(FileNotFoundError) as other, files.replacing(tmp_path / "b"):
        (tmp_path / "missing").read_text()
    assert other.value.filename == str(tmp_path / "missing")
