import functools
import itertools
import signal
import subprocess
import sys
import time
import types
from typing import Any, NamedTuple

import linear_run
import numpy as np
import optax
import pytest

from cpc import train
from cpc.results.score import read_records
from cpc.train import loop
from cpc.types import UserError
from tests.fake_run import untimed_records

STEPS = 30


def stop_at(step):
    calls = itertools.count()
    return lambda: "SIGTERM" if next(calls) == step else ""


def assert_same_state(a, b):
    a, b = linear_run.host(a), linear_run.host(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


class Run(NamedTuple):
    state: Any
    records: list


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return Run(linear_run.run(folder, STEPS).state, untimed_records(folder))


def test_resumed_run_equals_uninterrupted_run(tmp_path, whole):
    """Stops between saves, at a save that evaluates, and between saves again."""
    for stopped_at, num_calls in ((7, 7), (10, 3), (15, 5)):
        first = linear_run.run(tmp_path, STEPS, stop=stop_at(num_calls))
        assert (first.reason, int(first.state.step)) == ("SIGTERM", stopped_at)
    for num_steps in (STEPS, STEPS, 9):  # a finished run does nothing
        last = linear_run.run(tmp_path, num_steps)
        assert (last.reason, int(last.state.step)) == ("", STEPS)
        assert_same_state(whole.state, last.state)
        assert untimed_records(tmp_path) == whole.records


def test_records_sum_and_measure_time_over_their_window(tmp_path):
    begin = time.perf_counter()
    linear_run.run(tmp_path, 23)
    slowest = 3 / (time.perf_counter() - begin)
    records = read_records(tmp_path, [])
    rates = [record.get("steps_per_second", slowest) for record in records]
    assert len({*rates}) > 1
    assert min(rates) >= slowest
    assert [(record["split"], record["step"]) for record in records] == [
        *[("train", 5), ("train", 10), ("test", 10), ("train", 15)],
        *[("train", 20), ("test", 20), ("train", 23), ("test", 23)],
    ]
    for record in records:
        if record["split"] == "train":
            assert record["seen"] == 16
            np.testing.assert_allclose(record["per_k"], [record["loss"], 2 * record["loss"]], 1e-6)


def test_killed_and_stopped_processes_resume(tmp_path):
    """Each gets its signal while it saves a checkpoint that is not the first."""
    parts, old = tmp_path / "parts", set()
    words = [sys.executable, "-m", "tests.train.linear_run", str(parts)]
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        names, end = set(), time.monotonic() + 60
        while not (any(map(str.isdecimal, names)) and any("tmp" in name for name in names - old)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "waited too long"
            names = {path.name for path in (parts / "checkpoints").glob("*")}
            time.sleep(0.001)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        old = names
    assert (process.returncode, errors) == (0, "")
    step, reason = output.split()[-2:]
    assert reason == "SIGTERM"
    resumed = linear_run.run(parts, int(step) + 7)
    whole = linear_run.run(tmp_path / "whole", int(step) + 7)
    assert_same_state(whole.state, resumed.state)
    assert untimed_records(tmp_path / "whole") == untimed_records(parts)
    assert not list((parts / "checkpoints").glob("*tmp*"))


@pytest.mark.parametrize(("stopped_at", "best"), [(40, 40), (30, 20), (25, 20)])
def test_interrupted_evaluation_is_repeated_on_resume(tmp_path, stopped_at, best):
    """It may change the best checkpoint. Step 25 is not saved otherwise."""

    def evaluate(state):
        return [{"loss": 0.1 if int(state.step) == best else 1.0 + int(state.step)}]

    def interrupted(state):
        if int(state.step) == stopped_at:
            raise train.Stopped("a probe was stopped by SIGINT")
        return evaluate(state)

    def kept(name):
        folder = tmp_path / name / "checkpoints"
        steps = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        return steps, train.best_step(folder)

    run = functools.partial(linear_run.run, num_steps=40, eval_every=5)
    whole = run(tmp_path / "whole", evaluate=evaluate)
    stopped = run(tmp_path / "parts", evaluate=interrupted)
    assert kept("parts")[0][-1] == int(stopped.state.step) == stopped_at
    assert "SIGINT" in stopped.reason
    assert kept("whole") == (sorted({best, 30, 40}), best)
    for _ in range(2):  # the second time nothing is pending
        resumed = run(tmp_path / "parts", evaluate=evaluate)
        assert_same_state(whole.state, resumed.state)
        assert kept("parts") == kept("whole")
        assert not list((tmp_path / "parts" / "checkpoints").glob("owed*"))
        assert untimed_records(tmp_path / "whole") == untimed_records(tmp_path / "parts")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nested_stop_on_signals(number):
    # Shells ignore SIGINT in background jobs.
    inherited = signal.signal(number, signal.default_int_handler)
    try:
        with train.stop_on_signals() as outer:
            with train.stop_on_signals() as inner:
                assert (outer(), inner()) == ("", "")
                signal.raise_signal(number)
                assert (outer(), inner()) == (number.name, number.name)
            with train.stop_on_signals() as later:
                assert later() == number.name
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(number)
        assert signal.getsignal(number) is signal.default_int_handler
        with train.stop_on_signals() as next_one:
            assert next_one() == ""
    finally:
        signal.signal(number, inherited)


def make(tx):
    mesh = train.make_mesh(1)
    state = train.replicate(linear_run.new_state(tx), mesh)
    return mesh, state, train.jit_step(train.make_train_step(linear_run.loss_fn, tx), state)


def test_infinite_parameters_are_not_saved(tmp_path):
    mesh, state, step = make(optax.sgd(np.inf))
    overflow = r"in layer/bias after step 1; nothing was saved before"
    with train.open_checkpoints(tmp_path) as checkpoint:
        sinks = train.Sinks(checkpoint)
        with pytest.raises(UserError, match=overflow):
            train.fit(state, step, linear_run.batches(mesh), num_steps=1, sinks=sinks)
        assert checkpoint.latest_step is None


def test_non_finite_loss_stops_and_keeps_the_last_checkpoint(tmp_path, whole):
    where = r"step 11 \(batch 10\): the gradient of layer/bias"
    with pytest.raises(UserError, match=f"{where}.*that of step 10"):
        linear_run.run(tmp_path, STEPS, nan_at=10)
    last = untimed_records(tmp_path)[-1]  # a window without a finite step has no loss
    assert (last["step"], last["loss"], last["gradient_norm"]) == (15, None, None)
    good = linear_run.run(tmp_path, STEPS)  # resumed with repaired data
    assert_same_state(good.state, whole.state)


def test_eight_devices_give_equal_records_with_one_trace(tmp_path, whole):
    traces = []

    def counting(*arguments):
        traces.append(1)
        return linear_run.loss_fn(*arguments)

    for num_steps in (23, STEPS):
        eight = linear_run.run(tmp_path, num_steps, num_devices=8, loss=counting).state
    assert len(traces) == 1
    records = {(record["split"], record["step"]): record for record in untimed_records(tmp_path)}
    for one in whole.records:
        other = records[one["split"], one["step"]]
        if one["step"] != 25:  # the stop at 23 divided this window
            np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-5)
            for name in {"gradient_norm"} & one.keys():
                np.testing.assert_allclose(one[name], other[name], rtol=1e-5)
    kernel = eight.params["layer"]["kernel"]
    np.testing.assert_allclose(whole.state.params["layer"]["kernel"], kernel, rtol=1e-4)
    assert kernel.sharding == train.replicated(train.make_mesh(8))


def test_data_ending_early_are_reported(tmp_path):
    mesh, state, step = make(optax.adam(0.1))
    few = [train.put_batch(linear_run.batch_of_step(0), mesh)] * 3
    with pytest.raises(UserError, match="ended after 3 of 5 steps"):
        train.fit(state, step, lambda start: few[start:], num_steps=5)


def test_metrics_are_written_while_the_next_step_runs():
    events, (mesh, state, jitted) = [], make(optax.adam(0.1))
    write = lambda record: events.append(f"{record['split']} {record['step']}")  # noqa: E731
    writer = types.SimpleNamespace(write=write, close=lambda: None)

    def step(state, batch):
        events.append("step")
        return jitted(state, batch)

    train.fit(
        state,
        step,
        lambda start: (train.put_batch(linear_run.batch_of_step(i), mesh) for i in range(9)),
        num_steps=5,
        evaluate=lambda state: [{"at": int(state.step)}],
        cadence=train.Cadence(log_every=2, eval_every=4),
        sinks=train.Sinks(writers=[writer]),
        steps_in_flight=1,
    )
    assert events == [
        *["step", "step", "step", "train 2", "step", "train 4", "test 4", "step"],
        *["train 5", "test 5"],
    ]


def test_loop_reports_steps_waits_and_pauses(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(loop, "report_step", lambda step, num_waits: said.append((step, num_waits)))
    monkeypatch.setattr(loop, "report_busy", lambda step: said.append((step, "busy")))
    linear_run.run(tmp_path, 22, eval_every=10, save_every=18)
    waits = (0,) * 16 + (1,) * 6
    steps = [(step - lacks, waits[step - 1]) for step in range(1, 23) for lacks in (1, 0)]
    assert [word for word in said if word[1] != "busy"] == steps
    # Evaluation at 10 and 20, a save at 18, both at the end.
    busy = [i for i, word in enumerate(said) if word[1] == "busy"]
    assert [said[i][0] for i in busy] == [said[i - 1][0] for i in busy] == [10, 18, 20, 22]


def launch(workdir, num_steps=STEPS, **options):
    result = linear_run.run(workdir, num_steps, steps_per_launch=5, log=lambda _: None, **options)
    return Run(result.state, untimed_records(workdir))


def test_launches_of_several_steps_equal_single_steps(tmp_path, whole):
    asked = iter(["", "", "SIGTERM"])
    halted = launch(tmp_path / "parts", stop=lambda: next(asked))
    assert int(halted.state.step) == 10
    parts, five = launch(tmp_path / "parts"), launch(tmp_path / "five")
    assert_same_state(five.state, parts.state)
    assert five.records == parts.records
    for a, b in zip(whole.records, five.records, strict=True):
        assert (a["step"], a["split"], a.keys()) == (b["step"], b["split"], b.keys())
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
    one, of_five = linear_run.host(whole.state), linear_run.host(five.state)
    for name, value in one.items():
        np.testing.assert_allclose(value, of_five[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_cadence_within_a_launch_is_rejected(tmp_path):
    for name in ("log_every", "eval_every", "save_every"):
        with pytest.raises(UserError, match=f"{name} is 4, .* 5"):
            launch(tmp_path, **{name: 4})
    with pytest.raises(UserError, match="num_steps is 21"):
        launch(tmp_path, num_steps=21)
    with pytest.raises(UserError, match=r"step 8 \(batch 7\)"):
        launch(tmp_path, nan_at=7, log_every=100, save_every=10)
    # Non-finite parameters are not saved before the next log.
    assert not [p for p in (tmp_path / "checkpoints").glob("*") if p.name.isdecimal()]
