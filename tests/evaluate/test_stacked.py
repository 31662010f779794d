import numpy as np
import pytest

from cpc.evaluate import read_rows, with_neighbours
from cpc.evaluate.probe import as_stacked, join, keep


def naive_neighbours(frames, reach):
    """One row after the other, one neighbour after the other."""
    rows = []
    for t in range(len(frames)):
        around = [min(max(s, 0), len(frames) - 1) for s in range(t - reach, t + reach + 1)]
        rows.append(np.concatenate([frames[s] for s in around]))
    return np.array(rows)


def utterances_of(*lengths):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((length, 3)).astype(np.float32) for length in lengths]


@pytest.mark.parametrize(("length", "reach"), [(30, 8), (5, 8), (1, 2), (7, 0)])
def test_neighbours_of_each_frame(length, reach):
    (frames,) = utterances_of(length)
    stacked = with_neighbours(frames, reach)
    assert stacked.shape == (length, 3 * (2 * reach + 1))
    np.testing.assert_array_equal(read_rows(stacked), naive_neighbours(frames, reach))
    np.testing.assert_array_equal(read_rows(stacked, 2, 4), naive_neighbours(frames, reach)[2:4])


def test_no_row_reaches_into_another_utterance():
    parts = utterances_of(6, 1, 9)
    joined = join([with_neighbours(part, 2) for part in parts])
    expected = np.concatenate([naive_neighbours(part, 2) for part in parts])
    np.testing.assert_array_equal(read_rows(joined), expected)
    assert len(joined.frames) == 16 + 3 * 4  # two more at either end of each


def test_kept_rows_read_the_same_and_bring_no_other_frame():
    (frames,) = utterances_of(20)
    rows = with_neighbours(frames, 2)
    kept = keep(rows, np.array([9, 3]))
    np.testing.assert_array_equal(read_rows(kept), read_rows(rows)[[9, 3]])
    assert len(kept.frames) == 10
    single = keep(as_stacked(frames), np.array([5, 1]))
    np.testing.assert_array_equal(single.frames, frames[[1, 5]])
    np.testing.assert_array_equal(read_rows(single), frames[[5, 1]])
