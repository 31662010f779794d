import dataclasses

import numpy as np
import pytest
from packages import recordings_of

from cpc import data
from cpc.types import UserError


@pytest.fixture
def ten():
    """Ten recordings, of which the i-th holds 1000 i, 1000 i + 1, ..."""
    ramps = (1000 * np.arange(10)[:, None] + np.arange(100)).astype(np.int16)
    return recordings_of(ramps, "aaaaabbbbc", rms=np.linspace(0.1, 1.0, 10, dtype=np.float32))


def test_select_reads_what_it_names(ten):
    some = data.select(data.select(ten, [7, 0, 3]), [2, 1])
    assert some.names == ("u3", "u0")
    assert some.speakers == ("a", "a")
    assert some.read(0, 5, 8).tolist() == [3005, 3006, 3007]
    np.testing.assert_allclose(some.rms, [0.4, 0.1], rtol=1e-6)


def test_split_shares_speakers_and_no_utterance(ten):
    train, test = data.split_by_utterance(ten, 0.2, seed=1)
    assert sorted(train.names + test.names) == sorted(ten.names)
    assert set(test.speakers) == {"a", "b"}  # c has a single utterance, which trains
    assert set(train.speakers) == {"a", "b", "c"}
    assert data.split_by_utterance(ten, 0.2, seed=1)[1].names == test.names
    seen = {data.split_by_utterance(ten, 0.2, seed=s)[1].names for s in range(8)}
    assert len(seen) > 1
    for fraction in (0.01, 0.99):  # one on each side
        for part in data.split_by_utterance(ten, fraction, seed=0):
            assert {"a", "b"} <= set(part.speakers)
    for fraction in (0.0, 1.0):
        with pytest.raises(UserError, match="test_fraction"):
            data.split_by_utterance(ten, fraction, seed=0)


def test_absent_and_shared_utterances_are_counted_and_named(ten):
    with pytest.raises(UserError, match=r"3 of 4 listed .* x1, x2, x3"):
        data.split_by_lists(ten, ["u1", "x1"], ["x2", "x3"])
    with pytest.raises(UserError, match="both lists"):
        data.split_by_lists(ten, ["u1", "u2"], ["u2"])
    with pytest.raises(UserError, match=r"1 of 3.* named like u0"):
        data.split_by_lists(ten, ["u0", "u1.wav"], ["u3"])


def test_named_files_that_are_no_files_are_never_opened(tmp_path):
    (tmp_path / "named").symlink_to("/dev/zero")
    for read in (data.read_list, data.read_alignments, data.read_items):
        with pytest.raises(UserError, match="not a regular file"):
            read(tmp_path / "named")
    with pytest.raises(UserError, match=r"none\.txt"):
        data.read_list(tmp_path / "none.txt")


def test_lists_split_also_damaged_utterances(ten, tmp_path):
    (tmp_path / "train.txt").write_text("u3\n\nu1 \n")
    train, test = data.split_by_lists(ten, data.read_list(tmp_path / "train.txt"), ["u9"])
    assert (train.names, test.names) == (("u3", "u1"), ("u9",))
    skipped = (
        ("/somewhere/u1.flac", "is empty"),
        ("u2", "cut"),
        ("/somewhere/ann/1.wav", "is empty"),
    )
    some = recordings_of([np.zeros(9)], "a", skipped=skipped)
    train, test = data.split_by_lists(some, ["u0", "u1"], ["u2"])
    assert (train.names, test.names) == (("u0",), ())
    by_path = dataclasses.replace(some, names=("ann/0",))
    assert data.split_by_lists(by_path, ["ann/0"], ["ann/1"])[0].names == ("ann/0",)
    with pytest.raises(UserError, match="bob/1"):
        data.split_by_lists(by_path, ["ann/0"], ["bob/1"])
