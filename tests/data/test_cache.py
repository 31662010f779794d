import json

import pytest

from cpc.data import cache_dir
from cpc.data.cache import remember
from cpc.files import seal


def find(path, said, number=3):
    made = lambda: {"number": number}  # noqa: E731
    return remember(path, made, lambda found: found["number"] + 0, said.append, "it is found")


OTHER_FORMS = [json.dumps(seal(content)) for content in ({}, {"number": "3"})]


@pytest.mark.parametrize("harm", ["flip", "cut", "[]", *OTHER_FORMS])
def test_what_is_damaged_is_found_again_with_a_sentence(tmp_path, harm):
    path, said = tmp_path / "deep" / "a.json", []
    assert find(path, said) == find(path, said, number=4) == 3
    whole = path.read_text()
    damaged = {"flip": whole.replace("3", "2", 1), "cut": whole[:-9]}.get(harm, harm)
    path.write_text(damaged)
    assert find(path, said) == 3
    assert [line.endswith("it is found again") for line in said] == [True]
    assert path.read_text() == whole
    assert find(path, said) == 3
    assert len(said) == 1


def test_a_cache_that_may_not_be_written_is_gone_without(tmp_path):
    (tmp_path / "file").write_text("in the way of a folder")
    said = []
    assert find(tmp_path / "file" / "a.json", said) == 3
    assert "the next run repeats this work" in said[-1]


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("CPC_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "cpc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "cpc"
