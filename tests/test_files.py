import itertools
import json
import os
import stat

import numpy as np
import pytest
from ml_collections import ConfigDict

from cpc.files import (
    flatten,
    plain,
    read_arrays,
    read_json,
    replacing,
    write_arrays,
    write_json,
    write_sealed,
    write_text,
)
from cpc.types import UserError


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"step": 1})

    def fail():
        with replacing(path) as part:
            part.write_text("half")
            assert read_json(path) == {"step": 1}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert read_json(path) == {"step": 1}
    assert list(path.parent.iterdir()) == [path]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    happened = []

    def note(number):
        status = os.fstat(number)
        happened.append("folder" if stat.S_ISDIR(status.st_mode) else status.st_size)

    monkeypatch.setattr(os, "fsync", note)
    write_text(tmp_path / "a.txt", "seven77")
    assert happened == [7, "folder"]  # and then its name is


def test_every_flipped_bit_of_a_sealed_file_is_found(tmp_path):
    value = {"speaker": "grün", "sums": [0.1, 1e-300, None], "deep": {"on": True}, "seed": 3}
    path = tmp_path / "sealed.json"
    write_sealed(path, value)
    assert read_json(path) == value
    content, silent = path.read_bytes(), []
    for position, bit in itertools.product(range(len(content)), range(8)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            found = read_json(path)
        except UserError:
            continue
        # Space for space, or the seal's own name, which leaves the content as it was.
        if {name: found.get(name) for name in value} != value:
            silent.append((position, bit))
    assert not silent


def test_what_was_never_sealed_is_read_as_it_is(tmp_path):
    write_json(tmp_path / "old.json", {"a": 1})
    assert read_json(tmp_path / "old.json") == {"a": 1}


def test_json_is_plain(tmp_path):
    value = {"a": np.float32(0.5), "b": (1, np.nan), 3: np.arange(2), "c": ConfigDict({"d": 1})}
    write_json(tmp_path / "a.json", value)
    wanted = {"a": 0.5, "b": [1, None], "3": [0, 1], "c": {"d": 1}}
    assert json.loads((tmp_path / "a.json").read_text()) == wanted == plain(value)


@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe{}"])
def test_what_cannot_be_read_names_the_file(tmp_path, content):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json"):
        read_json(path)


def test_arrays(tmp_path):
    path = tmp_path / "a.npz"
    write_arrays(path, x=np.arange(3), names=np.array(["a"]))
    assert read_arrays(path)["x"].tolist() == [0, 1, 2]
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=r"a\.npz"):
        read_arrays(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))  # one array is no archive of named ones
    with pytest.raises(UserError, match=r"a\.npz"):
        read_arrays(path)


def test_flatten_takes_configs_and_other_separators():
    config = ConfigDict({"a": {"b": 1, "c": {}}, "d": (2,)})
    assert flatten(config) == {"a.b": 1, "d": (2,)}
    assert flatten({"a": {"b": 1}}, "/") == {"a/b": 1}
