"""Unusual environments: closed streams, full disks, no home, names that are not UTF-8."""

import os
import pathlib
import subprocess
import sys

import pytest

from configs import audio_synthetic
from cpc.data import cache_dir
from cpc.train import make_mesh
from cpc.types import UserError
from experiments.command import cli, lock
from experiments.command.run_dir import open_run

ROOT = pathlib.Path(__file__).parents[2]
#: The start of `python -m experiments.x`, then a child process.
START = """
import os, signal, sys
sys.argv[0] = "-m"
import experiments
print("one")
print("two", file=sys.stderr)
assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
assert os.waitpid(os.fork() or os._exit(0), 0)[1] == 0
assert [sys.stdout.fileno(), sys.stderr.fileno()] == [1, 2] or open(os.devnull).fileno() > 2
os._exit(7)
"""


@pytest.mark.parametrize("closed", [(), (0, 1, 2)])
def test_command_starts_without_streams(closed):
    prepare = f"""
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
[os.close(number) for number in {closed}]
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
    done = subprocess.run([sys.executable, "-c", prepare, START], cwd=ROOT, check=False)
    assert done.returncode == 7


def test_command_continues_if_stdout_is_full(capfd):
    with cli.Output(os.open("/dev/full", os.O_WRONLY), "w") as output:
        for _ in range(3):
            assert output.write(b"line") == 4
    assert capfd.readouterr().err.count("No space left on device") == 1
    reading, writing = os.pipe()
    os.close(reading)
    with cli.Output(writing, "w") as output, pytest.raises(BrokenPipeError):
        output.write(b"line")


def test_unknown_user_home_is_reported(monkeypatch):
    def expanduser(path):
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return path

    monkeypatch.setattr(pathlib.Path, "expanduser", expanduser)
    for name in ("CPC_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="set CPC_DATA"):
        cache_dir()


def test_names_that_are_not_utf8_are_rejected(tmp_path, monkeypatch):
    folder = pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    monkeypatch.chdir(folder)
    for workdir in ("run", str(folder / "run")):
        opened = open_run(workdir, audio_synthetic.get_config(), make_mesh(1))
        with pytest.raises(UserError, match="UTF-8"), opened:
            pass
    assert list(folder.iterdir()) == []
    with pytest.raises(UserError, match="UTF-8"):
        cli.check_homes(["runs/\udcff"])
    cli.check_homes(["runs/grün"])


def test_fifo_as_lock_is_reported(tmp_path):
    os.mkfifo(tmp_path / lock.RUN_LOCK)
    with pytest.raises(UserError, match=r"run\.lock is not a regular file"), lock.hold(tmp_path):
        pass
