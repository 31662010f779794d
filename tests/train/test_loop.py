import itertools
import pathlib

import linear_run
import numpy as np
import pytest

SCRIPT = pathlib.Path(linear_run.__file__)
ROOT = SCRIPT.parents[2]


def stop_at(step):
    calls = itertools.count()
    return lambda: "SIGTERM" if next(calls) == step else ""


def assert_same_state(a, b):
    a, b = linear_run.host(a), linear_run.host(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("stopped_at", [7, 10, 15, 20])
def test_resume_equals_never_stopped(tmp_path, stopped_at):
    whole = linear_run.run(tmp_path / "whole", 33)
    first = linear_run.run(tmp_path / "parts", 33, stop=stop_at(stopped_at))
    assert first.reason == "SIGTERM"
    assert int(first.state.step) == stopped_at
    second = linear_run.run(tmp_path / "parts", 33)
    assert (second.reason, int(second.state.step)) == ("", 33)
    assert_same_state(whole.state, second.state)
    assert linear_run.records(tmp_path / "whole") == linear_run.records(tmp_path / "parts")


def test_same_command_again_after_the_end_does_nothing(tmp_path):
    once = linear_run.run(tmp_path, 12)
    before = linear_run.records(tmp_path)
    again = linear_run.run(tmp_path, 12)
    assert_same_state(once.state, again.state)
    assert linear_run.records(tmp_path) == before


def test_records_hold_the_sums_of_their_window(tmp_path):
    linear_run.run(tmp_path, 23)
    kinds = [(record["kind"], record["step"]) for record in linear_run.records(tmp_path)]
    assert kinds == [
        *[("train", 5), ("train", 10), ("eval", 10), ("train", 15)],
        *[("train", 20), ("eval", 20), ("train", 23), ("eval", 23)],
    ]
    for record in linear_run.records(tmp_path):
        if record["kind"] == "train":
            assert record["seen"] == 16
            np.testing.assert_allclose(record["per_k"], [record["loss"], 2 * record["loss"]], 1e-6)
