import numpy as np
import pytest

from cpc import data
from cpc.types import UserError


def write(tmp_path, text):
    path = tmp_path / "phones.txt"
    path.write_text(text)
    return path


def test_the_papers_format(tmp_path):
    labels, names = data.read_alignments(write(tmp_path, "103-1240-0000 0 0 40 7\n\n1-2-3 2\n"))
    assert labels["103-1240-0000"].tolist() == [0, 0, 40, 7]
    assert labels["103-1240-0000"].dtype == np.int32
    assert labels["1-2-3"].tolist() == [2]
    assert len(names) == 41
    path = tmp_path / "phones.txt"  # a byte order mark and a decomposed accent are normalized
    path.write_text("a SIL AE SIL\ncafe\u0301 K 2\n", encoding="utf-8-sig")
    labels, names = data.read_alignments(path)
    assert names == ("2", "AE", "K", "SIL")
    assert {name: own.tolist() for name, own in labels.items()} == {"a": [3, 1, 3], "café": [2, 0]}


@pytest.mark.parametrize(("text", "message"), [
    ("a 1 2\nb\n", "line 2: b"), ("a 1 2\n\na 3\n", "line 3: a"), ("\n", "no phone labels"),
    ("a 1 -2\n", "line 1: -2"), ("a aa\nb -1 -1 aa\n", "line 2: -1"),
    ("a 1 2\nb 2 --1 3\n", "line 2: --1"), ("a 1 2\n\nb 65535 65536\n", "line 3: 65536"),
    ("a 1\nb " + 5000 * "9", "line 2: 99999999999999999999 "),
])  # fmt: skip
def test_mistakes_name_file_and_line(tmp_path, text, message):
    with pytest.raises(UserError, match=rf"phones\.txt.*{message}"):
        data.read_alignments(write(tmp_path, text))
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(UserError, match="cannot read"):
        data.read_alignments(tmp_path / "x")


@pytest.mark.parametrize("num_labels", [90, 99, 100, 103])
def test_a_few_frames_more_or_less(num_labels):
    labels = np.arange(num_labels, dtype=np.int32)
    frames = data.align(labels, 100, "a")
    assert frames.dtype == np.int32
    common = min(num_labels, 100)
    np.testing.assert_array_equal(frames[:common], labels[:common])
    assert (frames[common:] == data.UNLABELLED).all()
    assert len(frames) == 100
    for number in (0, 89, 104):
        with pytest.raises(UserError, match=rf"u7 has {number} labels but 100 frames"):
            data.align(np.zeros(number, np.int32), 100, "u7")
