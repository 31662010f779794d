import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import linear_run
import numpy as np
import optax
import pytest

from cpc import train
from cpc.types import UserError

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


@pytest.mark.slow
@pytest.mark.parametrize("stopped_at", [7, 10, 15])
def test_resume_equals_never_stopped(tmp_path, stopped_at):
    whole = linear_run.run(tmp_path / "whole", 33)
    first = linear_run.run(tmp_path / "parts", 33, stop=stop_at(stopped_at))
    assert first.reason == "SIGTERM"
    assert int(first.state.step) == stopped_at
    second = linear_run.run(tmp_path / "parts", 33)
    assert (second.reason, int(second.state.step)) == ("", 33)
    assert_same_state(whole.state, second.state)
    assert linear_run.records(tmp_path / "whole") == linear_run.records(tmp_path / "parts")


@pytest.mark.slow
def test_same_command_again_after_the_end_does_nothing(tmp_path):
    once = linear_run.run(tmp_path, 12)
    before = linear_run.records(tmp_path)
    again = linear_run.run(tmp_path, 12)
    assert_same_state(once.state, again.state)
    assert linear_run.records(tmp_path) == before
    assert int(linear_run.run(tmp_path, 9).state.step) == 12  # fewer steps than are done


def test_records_hold_the_sums_of_their_window(tmp_path):
    linear_run.run(tmp_path, 23)
    kinds = [(record["split"], record["step"]) for record in linear_run.records(tmp_path)]
    assert kinds == [
        *[("train", 5), ("train", 10), ("test", 10), ("train", 15)],
        *[("train", 20), ("test", 20), ("train", 23), ("test", 23)],
    ]
    for record in linear_run.records(tmp_path):
        if record["split"] == "train":
            assert record["seen"] == 16
            np.testing.assert_allclose(record["per_k"], [record["loss"], 2 * record["loss"]], 1e-6)


def start(workdir, *arguments):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(workdir), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def wait_until(condition, process, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)


@pytest.mark.slow
def test_kill_in_mid_save_then_resume_equals_never_stopped(tmp_path):
    killed = tmp_path / "killed"
    process = start(killed, "--steps", "1000000", "--save-every", "10")

    def is_saving_a_later_one():
        names = [path.name for path in (killed / "checkpoints").glob("*")]
        return len([n for n in names if n.isdecimal()]) and any("tmp" in name for name in names)

    wait_until(is_saving_a_later_one, process)
    process.kill()
    process.communicate()
    steps = [int(p.name) for p in (killed / "checkpoints").glob("*") if p.name.isdecimal()]
    num_steps = max(steps) + 25  # the million would be too long for a test
    resumed = linear_run.run(killed, num_steps)
    whole = linear_run.run(tmp_path / "whole", num_steps)
    assert_same_state(whole.state, resumed.state)
    assert linear_run.records(tmp_path / "whole") == linear_run.records(killed)
    assert not list((killed / "checkpoints").glob("*tmp*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends(tmp_path, number):
    process = start(tmp_path / "parts", "--steps", "100000", "--pause-seconds", "0.02")
    wait_until(lambda: (tmp_path / "parts" / "metrics.jsonl").exists(), process)
    wait_until(lambda: linear_run.records(tmp_path / "parts"), process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    stopped_at = int(output.split("stopped at ")[1].split()[0])
    assert f"because of '{number.name}'" in output
    resumed = linear_run.run(tmp_path / "parts", stopped_at + 7)
    whole = linear_run.run(tmp_path / "whole", stopped_at + 7)
    assert_same_state(whole.state, resumed.state)
    assert linear_run.records(tmp_path / "whole") == linear_run.records(tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.parametrize("stopped_at", [10, 25])
def test_an_evaluation_that_a_signal_cuts_short_loses_no_step_and_is_made_when_resumed(
    tmp_path, stopped_at
):
    def cut_short(state):
        if int(state.step) == stopped_at:
            raise train.Stopped("a probe was stopped by SIGINT")
        return linear_run.evaluate(state)

    steps = {"num_steps": 25, "eval_every": 5, "save_every": 20}
    stopped = linear_run.run(tmp_path / "parts", evaluate=cut_short, **steps)
    assert int(stopped.state.step) == stopped_at
    assert "SIGINT" in stopped.reason
    resumed = linear_run.run(tmp_path / "parts", **steps)
    whole = linear_run.run(tmp_path / "whole", **steps)
    assert_same_state(whole.state, resumed.state)
    assert linear_run.records(tmp_path / "whole") == linear_run.records(tmp_path / "parts")
    again = linear_run.run(tmp_path / "parts", **steps)  # nothing is owed any more
    assert_same_state(whole.state, again.state)
    assert linear_run.records(tmp_path / "whole") == linear_run.records(tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.parametrize(("stopped_at", "best"), [(10, 10), (40, 40), (40, 10), (30, 20)])
def test_an_evaluation_made_when_resumed_decides_which_checkpoint_is_the_best(
    tmp_path, stopped_at, best
):
    def evaluate(state):
        return [{"loss": 0.1 if int(state.step) == best else 1.0 + int(state.step)}]

    def cut_short(state):
        if int(state.step) == stopped_at:
            raise train.Stopped("a probe was stopped by SIGINT")
        return evaluate(state)

    def kept(name):
        folder = tmp_path / name / "checkpoints"
        steps = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        return steps, train.best_step(folder)

    linear_run.run(tmp_path / "whole", 40, evaluate=evaluate)
    linear_run.run(tmp_path / "parts", 40, evaluate=cut_short)
    linear_run.run(tmp_path / "parts", 40, evaluate=evaluate)
    assert kept("whole") == (sorted({best, 30, 40}), best)
    assert kept("parts") == kept("whole")
    assert linear_run.records(tmp_path / "whole") == linear_run.records(tmp_path / "parts")


def test_what_runs_within_a_training_stops_at_the_same_signal():
    """The second Ctrl-C is immediate."""
    # A shell that starts the tests in the background has told them to ignore it.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with train.stop_on_signals() as outer:
            with train.stop_on_signals() as inner:
                assert (outer(), inner()) == ("", "")
                signal.raise_signal(signal.SIGINT)
                assert (outer(), inner()) == ("SIGINT", "SIGINT")
            with train.stop_on_signals() as later:
                assert later() == "SIGINT"
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with train.stop_on_signals() as next_one:
            assert next_one() == ""
    finally:
        signal.signal(signal.SIGINT, inherited)


def test_a_window_without_a_finite_step_has_no_loss(tmp_path):
    with pytest.raises(UserError, match="not finite"):
        linear_run.run(tmp_path, 33, nan_at=10, log_every=5)
    last = linear_run.records(tmp_path)[-1]
    assert (last["step"], last["loss"], last["gradient_norm"]) == (15, None, None)


def test_parameters_that_an_update_makes_infinite_are_not_saved(tmp_path):
    """Loss and gradient of the step are finite."""
    tx, mesh = optax.sgd(np.inf), train.make_mesh(1)
    state = train.replicate(linear_run.new_state(tx), mesh)
    step = train.jit_step(train.make_train_step(linear_run.loss_fn, tx, ema_decay=0.9), state)
    overflow = r"in layer/bias after step 1; nothing was saved before"
    with train.open_checkpoints(tmp_path) as checkpoint:
        sinks = train.Sinks(checkpoint)
        with pytest.raises(UserError, match=overflow):
            train.fit(state, step, linear_run.batches(mesh), num_steps=1, sinks=sinks)
        assert checkpoint.latest_step is None


@pytest.mark.slow
@pytest.mark.parametrize("nan_at", [0, 9, 10, 13])
def test_a_non_finite_loss_stops_and_leaves_the_last_good_checkpoint(tmp_path, nan_at):
    where = rf"step {nan_at + 1} \(batch {nan_at}\): the gradient of layer/bias"
    kept = "that of step 10" if nan_at >= 10 else "nothing was saved"
    with pytest.raises(UserError, match=f"{where}.*{kept}"):
        linear_run.run(tmp_path, 33, nan_at=nan_at)
    good = linear_run.run(tmp_path, 33)  # the same command, with the data repaired
    assert_same_state(good.state, linear_run.run(tmp_path / "whole", 33).state)


def test_the_save_before_the_next_log_does_not_keep_what_is_bad(tmp_path):
    with pytest.raises(UserError, match="step 8"):
        linear_run.run(tmp_path, 33, nan_at=7, log_every=100, save_every=10)
    assert not [p for p in (tmp_path / "checkpoints").glob("*") if p.name.isdecimal()]


@pytest.mark.slow
def test_one_and_eight_devices_give_the_same_records(tmp_path):
    one = linear_run.run(tmp_path / "one", 20, num_devices=1)
    eight = linear_run.run(tmp_path / "eight", 20, num_devices=8)
    for a, b in zip(*(linear_run.records(tmp_path / n) for n in ("one", "eight")), strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
        if a["split"] == "train":
            np.testing.assert_allclose(a["gradient_norm"], b["gradient_norm"], rtol=1e-5)
    np.testing.assert_allclose(
        one.state.params["layer"]["kernel"], eight.state.params["layer"]["kernel"], rtol=1e-4
    )
    assert eight.state.params["layer"]["kernel"].sharding == train.replicated(train.make_mesh(8))


@pytest.mark.slow
def test_the_step_is_traced_once_also_after_logs_saves_and_a_resume(tmp_path, monkeypatch):
    traces = []
    original = linear_run.loss_fn

    def counting(*arguments):
        traces.append(1)
        return original(*arguments)

    monkeypatch.setattr(linear_run, "loss_fn", counting)
    linear_run.run(tmp_path, 23, num_devices=8)
    assert len(traces) == 1
    linear_run.run(tmp_path, 43, num_devices=8)
    assert len(traces) == 2


def test_data_that_ends_early(tmp_path):
    mesh = train.make_mesh(1)
    tx, _ = train.make_optimizer(learning_rate=0.1, num_steps=5)
    state = train.replicate(linear_run.new_state(tx), mesh)
    step = train.jit_step(train.make_train_step(linear_run.loss_fn, tx), state)
    few = [train.put_batch(linear_run.batch_of_step(0), mesh)] * 3
    with pytest.raises(UserError, match="ended after 3 of 5 steps"):
        train.fit(state, step, lambda start: few[start:], num_steps=5)


class Order:
    """A writer, evaluator and step that note who was called when."""

    def __init__(self):
        self.events = []

    def write(self, record):
        self.events.append(f"{record['split']} {record['step']}")

    def close(self):
        pass


def test_metrics_are_written_while_the_next_step_runs():
    order = Order()
    mesh = train.make_mesh(1)
    tx, _ = train.make_optimizer(learning_rate=0.1, num_steps=5)
    state = train.replicate(linear_run.new_state(tx), mesh)
    jitted = train.jit_step(train.make_train_step(linear_run.loss_fn, tx), state)

    def step(state, batch):
        order.events.append("step")
        return jitted(state, batch)

    train.fit(
        state,
        step,
        lambda start: (train.put_batch(linear_run.batch_of_step(i), mesh) for i in range(9)),
        num_steps=5,
        evaluate=lambda state: [{"at": int(state.step)}],
        cadence=train.Cadence(log_every=2, eval_every=4),
        sinks=train.Sinks(writers=[order]),
        steps_in_flight=1,
    )
    assert order.events == [
        *["step", "step", "step", "train 2", "step", "train 4", "test 4", "step"],
        *["train 5", "test 5"],
    ]


def launches(workdir, steps_per_launch, num_steps=20, **options):
    """The linear run by launches of several steps."""
    options = {"log": lambda _: None, "steps_per_launch": steps_per_launch, **options}
    result = linear_run.run(workdir, num_steps, **options)
    return linear_run.host(result.state), linear_run.records(workdir)


@pytest.mark.slow
def test_launches_of_several_steps_are_the_same_training(tmp_path):
    one, records = launches(tmp_path / "one", 1)
    five, of_five = launches(tmp_path / "five", 5)
    assert [(r["step"], r["split"]) for r in of_five] == [(r["step"], r["split"]) for r in records]
    for a, b in zip(records, of_five, strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
    for name, value in one.items():
        np.testing.assert_allclose(value, five[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_launches_stopped_and_resumed_are_bit_for_bit_those_never_stopped(tmp_path):
    whole, records = launches(tmp_path / "whole", 5)
    asked = iter(["", "", "SIGTERM"])
    halted, _ = launches(tmp_path / "parts", 5, stop=lambda: next(asked))
    assert int(halted[".step"]) == 10
    parts, of_parts = launches(tmp_path / "parts", 5)
    assert of_parts == records
    for name, value in whole.items():
        np.testing.assert_array_equal(value, parts[name], err_msg=name)


def test_a_failure_inside_a_launch_names_its_step(tmp_path):
    with pytest.raises(UserError, match=r"step 8 \(batch 7\)"):
        launches(tmp_path, 5, nan_at=7)


def test_what_is_due_within_a_launch_is_refused(tmp_path):
    for name in ("log_every", "eval_every", "save_every"):
        with pytest.raises(UserError, match=f"{name} is 4, which is no multiple of the 5"):
            launches(tmp_path, 5, **{name: 4})
    with pytest.raises(UserError, match="num_steps is 21"):
        launches(tmp_path, 5, num_steps=21)
