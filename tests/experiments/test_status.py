import contextlib
import errno
import json
import os
import pathlib
import platform

import pytest

from configs.audio import KEYS
from configs.keys import make_config
from cpc.train import Stopped, make_mesh
from cpc.types import UserError
from experiments import status
from experiments.command import run_dir
from experiments.command.run_dir import STATE, record_state
from experiments.compare import __main__ as compare
from experiments.training.loop import StateWriter
from tests.fake_run import draw_nothing
from tests.small_run import probe_score, write_run


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "deep" / "down" / "done", scores=[probe_score("c", 0.4)])
    write_run(tmp_path / "now", step=10)
    record_state(write_run(tmp_path / "old", step=10), "running", updated=1e9)
    sweep = tmp_path / "sweep"
    record_state(write_run(sweep / "stopped", step=10), "stopped")
    failure = {"error": "it broke", "command": "python -m again"}
    record_state(write_run(sweep / "failed", step=10), "failed", **failure)
    names = ["stopped", "failed", "waits"]
    (sweep / "sweep.json").write_text(json.dumps({"cells": {name: {} for name in names}}))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('["of something else"]')
    (tmp_path / "file.txt").write_text("")
    return tmp_path


def test_states_and_table(runs):
    rows = {row.name: row for row in status.read_all(runs)}
    assert {name: row.state for name, row in rows.items()} == {
        "deep/down/done": "finished", "now": "running", "old": "dead",
        "sweep/stopped": "stopped", "sweep/failed": "failed", "sweep/waits": "waiting",
    }  # fmt: skip
    assert rows["deep/down/done"][2:] == ("20 of 20", "", "1.00 (k = 2–3)", "2.00", "")
    text = status.describe(list(rows.values()))
    assert max(map(len, status.table(list(rows.values()), 30).splitlines())) <= 30
    now = next(line for line in text.splitlines() if line.startswith("now"))
    assert " ".join(now.split()) == "now running 10 of 20 0:05 1.00 (k = 2–3) 2.00"
    assert "python -m again" in text
    assert "1 finished, 1 running, 1 stopped, 1 waiting, 1 dead, 1 failed" in text


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("error", "state", "said"), [
    (None, "finished", ""), (UserError("no room;\nmake some"), "failed", "no room; make some"),
    (KeyError(), "failed", "KeyError"), (KeyboardInterrupt(), "stopped", ""),
    (Stopped("SIGTERM"), "stopped", ""), (Killed(), "dead", ""),
])  # fmt: skip
def test_run_records_its_state(tmp_path, monkeypatch, error, state, said):
    def end():
        with run_dir.open_run(str(tmp_path / "run"), make_config(KEYS), make_mesh(1)):
            assert states(tmp_path) == {"run": "running"}
            if isinstance(error, Killed):
                monkeypatch.setattr(run_dir, "record_state", lambda *_, **__: None)
            if error is not None:
                raise error
            (tmp_path / "run" / "report.html").write_text("")

    with contextlib.suppress(Exception, KeyboardInterrupt, Killed):
        end()
    assert states(tmp_path) == {"run": state}
    recorded = run_dir.read_state(tmp_path / "run")
    assert (recorded["pid"], recorded["host"]) == (os.getpid(), platform.node())
    if state == "failed":
        assert run_dir.read_failure(tmp_path / "run").startswith(f"failed: {said}")


def test_stopped_run_keeps_its_step_without_a_page(tmp_path):
    writer, names = StateWriter(tmp_path, {"records": 0}), ("state", *run_dir.PROGRESS)

    def state():
        recorded = run_dir.read_state(tmp_path)
        return [recorded.get(name) for name in names]

    own = {"split": "test", "step": 5, "nats": 1.0, "nats_offsets": "1–3", "is_bound": False}
    writer.write(own)
    assert state() == [None] * 5
    train = {"split": "train", "num_steps": 40, "nats": 9.0}
    for step in (10, 20):  # too soon after the first
        writer.write({**train, "step": step, "steps_per_second": 2.0})
    assert state() == ["running", 10, 40, 2.0, "1.00 (k = 1–3, estimate)"]
    writer.write({**own, "series": "strict", "nats": 0.5, "is_bound": True})
    writer.close()
    run_dir.record_state(tmp_path, "stopped")
    assert state() == ["stopped", 20, 40, 2.0, "0.50 (k = 1–3)"]
    with run_dir.open_run(str(tmp_path / "run"), make_config(KEYS), make_mesh(1)):
        pass  # stopped before its page
    assert states(tmp_path / "run") == {"run": "stopped"}


def states(root):
    return {row.name: row.state for row in status.read_all(root)}


@pytest.mark.parametrize("content", ["", '{"step": "x", "state": 3}', "\x00\xff"])
def test_damaged_files_do_not_stop_status(runs, content):
    (runs / "old" / "config.json").write_text(content)
    for path in (runs / "now").rglob("*.json*"):
        path.write_text(content)
    (runs / "sweep" / "sweep.json").write_text(content)
    (runs / "sweep" / "failed" / "state.json").write_text(content)
    said = status.describe(status.read_all(runs))
    assert all(word in said for word in ("1 finished", "3 stopped", "1 dead", "old"))


def test_finished_needs_page_and_scores(runs):
    run = runs / "deep" / "down" / "done"
    (run / "report.html").unlink()
    assert not status.is_done(run)
    (run / "report.html").touch()
    (run / "probes" / "done.json").write_text('{"step": 20, "data": ["clothes"]}')
    assert status.is_done(run)
    assert [status.was_probed(run, step) for step in (10, 20)] == [False, True]
    (run / "scores.json").unlink()
    assert not any((status.is_done(run), status.was_probed(run, 20), status.is_done(runs / "now")))


def test_linked_runs_are_listed_once(tmp_path):
    write_run(tmp_path / "b" / "run")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b" / "up").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    elsewhere = write_run(tmp_path.parent / f"{tmp_path.name} elsewhere")
    (tmp_path / "link").symlink_to(elsewhere)
    assert [row.name for row in status.read_all(tmp_path)] == ["b/run", "link"]


def test_unreadable_folders_are_reported(tmp_path, monkeypatch):
    def checked(path, *args, stat=pathlib.Path.stat, **options):
        if path.parent.name == "private" or path.parts[-2:] == ("z", STATE):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **options)

    for name in ("a", "private", "z"):
        write_run(tmp_path / name)
    (tmp_path / "sweep.json").write_text('{"cells": {"z": {}}}')
    monkeypatch.setattr(pathlib.Path, "stat", checked)
    rows = status.read_all(tmp_path)
    assert [row.state for row in rows] == ["unreadable", "finished", "unreadable"]
    said = status.describe(rows)
    assert "private: it cannot be read (Permission denied)" in said
    assert "1 finished, 2 unreadable" in said
    assert [name for name, _ in compare.find([tmp_path])] == ["z", "a"]


def test_commands(runs, capsys, monkeypatch):
    draw_nothing(monkeypatch)
    status.run([str(runs)])
    assert "1 finished" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"file\.txt"):
        status.run([str(runs / "file.txt")])
    folders = [str(runs / "deep"), str(runs / "now")]
    compare.run(folders, str(runs / "page"))
    text = (runs / "page" / "comparison.md").read_text()
    assert all(word in text for word in ("| deep/down/done |", "| now | "))
    with pytest.raises(UserError, match="--workdir is required"):
        compare.run(folders, None)
    with pytest.raises(UserError, match="contains no run"):
        compare.run([str(runs / "foreign")], None)
