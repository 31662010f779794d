import io
import json
import types

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cpc import train
from cpc.files import read_lines
from cpc.results.score import read_records
from cpc.train import metrics
from cpc.types import UserError
from tests.fake_run import write_records
from tests.services import fake_service


def test_jsonl_holds_every_kind_of_number(tmp_path):
    writer = train.JsonlWriter(tmp_path / "run" / "metrics.jsonl")
    numbers = {"a": np.float32(0.5), "b": jnp.array([1.0, jnp.inf]), "c": float("nan"), "d": 3}
    writer.write({"step": 1, "split": "train", **numbers})
    # Each record is written to disk before the writer is closed.
    ((_, record),) = read_lines(tmp_path / "run" / "metrics.jsonl")
    writer.close()
    assert record == {"step": 1, "split": "train", "a": 0.5, "b": [1.0, None], "c": None, "d": 3}


def test_damaged_line_is_kept_and_reported(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        write_records(tmp_path, [{"step": step, "split": "train", "loss": 1.0}], step - 1)
    first, second, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, second.replace(b"1.0", b"\xff.0"), third, b"half"]) + b"\n")
    train.JsonlWriter(path, 3).close()
    lines = path.read_bytes().splitlines()
    assert (lines[0], lines[2], len(lines)) == (first, third, 3)
    problems = []
    assert [record["step"] for record in read_records(tmp_path, problems)] == [1, 3]
    assert problems == [f"Line 2 of {path} is damaged and is left out."]


def test_every_flipped_bit_of_a_record_is_detected(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_records(tmp_path, [{"step": n, "split": "train", "loss": 1.5} for n in (1, 2)])
    content, whole, silent = path.read_bytes(), read_records(tmp_path, []), []
    for position in range(content.index(b"\n")):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        problems = []
        if read_records(tmp_path, problems) != (whole[1:] if problems else whole):
            silent.append(position)
    assert not silent


def test_resume_drops_later_and_torn_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "split": "train", "loss": step / 3}) for step in (5, 10, 15)]
    path.write_text("\n".join(lines) + '\n{"step": 10, "lo')
    writer = train.JsonlWriter(path, 10)
    assert path.read_text().splitlines() == lines[:2]
    writer.write({"step": 15})
    writer.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [5, 10, 15]
    assert [item.name for item in tmp_path.iterdir()] == ["metrics.jsonl"]
    with pytest.raises(UserError, match="failed"):
        train.JsonlWriter(path / "metrics.jsonl")  # the parent is a file


def test_identity_of_the_run_is_recorded(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert metrics.read_identity(path) == {}
    for start, identity in ((0, {"seed": 0}), (2, {"seed": 1}), (3, None)):
        write_records(tmp_path, [{"step": start + 1, "loss": 1.0}], start, identity)
        assert metrics.read_identity(path).get("seed") == (identity or {}).get("seed")
    assert read_records(tmp_path, []) == [{"step": n, "loss": 1.0} for n in (1, 3, 4)]
    train.JsonlWriter(path, 9, {"seed": 2}).close()
    path.write_text(path.read_text().replace('"seed": 2', '"seed": 3'))
    assert metrics.read_identity(path) == {}
    assert [record["step"] for record in read_records(tmp_path, [])] == [1, 3, 4]


def test_tensorboard_has_scalars_and_lists_by_offset(tmp_path):
    writer = train.TensorBoardWriter(tmp_path)
    writer.write({"step": 3, "split": "train", "loss": 0.5, "bound": [1.5, 2.5], "note": "text"})
    writer.write({"step": 4, "split": "test", "loss": jnp.float32(0.25), "bad": float("nan")})
    writer.write({"step": 5, "loss": 1.0})
    writer.close()
    writer = train.TensorBoardWriter(tmp_path, 4)
    writer.write({"step": 5, "loss": 9.0})
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    values = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    assert values == {
        "train/loss": [(3, 0.5), (5, 9.0)], "train/bound/1": [(3, 1.5)],
        "train/bound/2": [(3, 2.5)], "test/loss": [(4, 0.25)],
    }  # fmt: skip


def test_service_gets_the_tensorboard_values():
    service = fake_service("wandb")
    config = {"model": {"widths": (4, 5)}}
    writer = train.ServiceWriter(service, "voices", config)
    writer.write({"step": 3, "split": "train", "loss": jnp.float32(0.5), "bound": [1.5, 2.5]})
    writer.write({"step": 3, "split": "test", "note": "text", "bad": float("nan")})  # not numbers
    writer.close()
    init = {"project": "cpc", "name": "voices", "config": {"model": {"widths": [4, 5]}}}
    assert service.calls == [
        ("init", (), {**init, "resume": "allow", "id": "voices"}),
        ("log", ({"train/loss": 0.5, "train/bound/1": 1.5, "train/bound/2": 2.5},), {"step": 3}),
        ("finish", (), {}),
    ]


def test_service_without_ids():
    """Trackio resumes runs by name."""
    calls = []

    def init(project, name=None, config=None, resume="never"):
        calls.append((project, name, resume))

    service = types.SimpleNamespace(__name__="trackio", init=init, finish=lambda: None)
    train.ServiceWriter(service, "voices", {}, say=pytest.fail, run_id="a1").close()
    assert calls == [("cpc", "voices", "allow")]


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_failing_service_warns_once(fails):
    said, service = [], fake_service("wandb", fails=[fails])
    writer = train.ServiceWriter(service, "voices", {}, say=said.append)
    for step in (1, 2):
        writer.write({"step": step, "loss": 0.5})
    writer.close()
    ((sentence),) = said
    assert f"{fails} failed (no {fails})" in sentence
    assert "\n" not in sentence
    told = [name for name, _, _ in service.calls]
    want = {"init": ["init"], "log": ["init", "log"], "finish": ["init", "log", "log", "finish"]}
    assert told == want[fails]


def record(step, loss=4.0, rate=2.0):
    return {"step": step, "split": "train", "loss": loss, "steps_per_second": rate}


def test_progress_in_a_file_has_occasional_lines():
    stream, seconds = io.StringIO(), iter([0.0, 4.0, 11.0, 12.0, 13.0])
    writer = train.ProgressWriter(5, stream=stream, clock=lambda: next(seconds))
    for step in range(1, 6):
        writer.write(record(step))
    writer.close()
    shown = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert shown == ["1/5", "3/5", "5/5"]
    assert "\r" not in stream.getvalue()
    assert "loss 4.000  2.0 steps/s  0:02 left" in stream.getvalue().splitlines()[0]


def test_progress_on_a_terminal_rewrites_one_line():
    stream = io.StringIO()
    stream.isatty = lambda: True
    writer = train.ProgressWriter(
        2000, train.describe_values("loss", "bound"), (0.01, "h audio"), stream
    )
    writer.write({**record(10, loss=12.5), "bound": 1.0})
    writer.write(record(2000, loss=2.5))
    writer.write({"step": 2000, "split": "test", "accuracy": 0.75, "per_k": [1, 2]})
    writer.close()
    line, *lines = stream.getvalue().split("\n")
    first, second = line.split("\r")[1:]
    assert first.startswith("step 10/2,000  loss 12.500  bound 1.000  2.0 steps/s  72 s audio/s")
    assert second.rstrip() == "step 2,000/2,000  loss 2.500  2.0 steps/s  72 s audio/s  0:00 left"
    assert len(second) >= len(first)  # it overwrites the line before
    assert lines == ["test at step 2,000  accuracy 0.750", ""]
    stream = io.StringIO()  # the first record has no rate
    train.ProgressWriter(9, None, (1.0, "h"), stream).write({"step": 1, "loss": None})
    assert stream.getvalue() == "step 1/9  loss None\n"
