"""Console lines of records with infinite, huge and missing numbers."""

import numpy as np
import pytest

from experiments.training.records import describe_record, mean_of_known

RECORD = {
    "split": "test", "rule": "one_per_sequence", "has_bound": True, "is_bound": True,
    "log_n": np.full(3, 4.0),
}  # fmt: skip


def line(losses, **fields):
    losses = np.array(losses)
    own = {"offset_loss": losses, "nats": mean_of_known(4.0 - losses)}
    return describe_record({**RECORD, **own, **fields})


@pytest.mark.parametrize("series", ["", "strict"])
def test_infinite_huge_and_missing_numbers_are_shown(series):
    for losses, said in (([1.0, np.inf, np.nan], "-inf"), ([1.0, 1.0, np.nan], "3.00"),
                         ([3e17] * 3, "-3e+17")):  # fmt: skip
        assert f"{said} nats" in line(losses, series=series)
    none = line([np.nan] * 3, series=series, log_n=np.full(3, np.nan))
    assert "no loss" in none
    assert "nan " not in none


def test_strict_bound_without_number_is_omitted():
    record = {"offset_loss": np.ones(1), "has_bound": False, "top1": 0.5, "chance": 0.01}
    record |= {"split": "train"}
    assert "bound" not in describe_record({**record, "strict_nats": np.nan})
    assert "bound 1.50" in describe_record({**record, "strict_nats": 1.5})
