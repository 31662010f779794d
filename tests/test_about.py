"""The command `cpc`: versions, extras, devices and the list of commands."""

import importlib
import pathlib
import re
import subprocess
import sys
from unittest import mock

import pytest

import cpc
from cpc import __main__ as program
from cpc import about

ROOT = pathlib.Path(__file__).parents[1]
METADATA = """Metadata-Version: 2.4
Name: kit
Version: 1.5
Provides-Extra: whole
Provides-Extra: lacking
Provides-Extra: old
Provides-Extra: nested
Requires-Dist: numpy>=1
Requires-Dist: numpy>=1; extra == "whole"
Requires-Dist: no-such-thing; extra == "lacking"
Requires-Dist: other-such; extra == "lacking"
Requires-Dist: numpy>=999; extra == "old"
Requires-Dist: kit[lacking]>=1; extra == "nested"
Requires-Dist: not-here; extra == "whole" and python_version < "3"
"""


def test_version_is_that_of_the_installation(monkeypatch):
    assert cpc.__version__ == importlib.metadata.version("cpc-jax")
    missing = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError("cpc-jax"))
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert cpc.__version__ == "0+unknown"
    with pytest.raises(AttributeError, match="nothing"):
        _ = cpc.nothing


def test_extras_are_listed_with_versions_or_install_command(tmp_path, monkeypatch):
    info = tmp_path / "kit-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    numpy = importlib.metadata.version("numpy")
    assert about.describe_extras("kit") == [
        "extras",
        f"  whole   numpy {numpy}",
        "  lacking lacks no-such-thing, other-such: pip install 'kit[lacking]'",
        "  old     lacks numpy: pip install 'kit[old]'",
        "  nested  lacks no-such-thing, other-such: pip install 'kit[nested]'",
    ]
    assert about.find_packages("kit", "nested")["kit"] == "1.5"
    assert about.describe_extras("not-here") == [
        "extras   are not known: not-here is not installed (pip install -e . in a checkout)"
    ]


def test_devices_and_paths_are_described(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "data"))
    lines = about.describe().splitlines()
    assert lines[0].startswith(f"cpc      {cpc.__version__}, in ")
    assert lines[1].startswith("Python   3.")
    assert re.fullmatch(r"jax      0\.\d+\S*: 2 cpu \(cpu\)", lines[2])
    assert lines[3] == f"data     {tmp_path / 'data'} (nothing is there yet)"
    assert lines[5].split()[0] == "dev"


@pytest.mark.parametrize(("code", "data", "reason"), [
    ("import os; os.abort()", "not known", "status -6"),
    ("raise RuntimeError('no driver')", "not known", "RuntimeError: no driver"),
    ("import time; time.sleep(60)", "not known", "no answer within 0.5 s"),
    ("class config: jax_platforms = 'cuda'\ndef local_devices(): raise AssertionError", "here",
     "jax has no plug-in here for JAX_PLATFORMS=cuda"),
])  # fmt: skip
def test_broken_plug_in_is_reported(tmp_path, monkeypatch, code, data, reason):
    (tmp_path / "jax.py").write_text(code)
    (tmp_path / "cpc").mkdir()
    (tmp_path / "cpc/__init__.py").touch()
    (tmp_path / "cpc/data.py").write_text("cache_dir = lambda: 'here'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = about.ask_child(0.5 if "sleep" in code else 60.0)
    assert found == (data, f"no devices: {reason}")


def run_program(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["cpc", *words])
    program.main()
    return capsys.readouterr().out


def test_commands_are_listed_with_their_first_line(monkeypatch, capsys):
    lines = run_program(monkeypatch, capsys, "--help").splitlines()
    listed = dict(line.split(maxsplit=1) for line in lines[1:])
    assert len(listed) == len(lines) - 1, "no alias is also a command"
    assert {*program.ALIASES} <= {*listed}
    assert {"train", "sweep", "probe", "reproduce", "information.own_arrays"} <= set(listed)
    assert not {"run", "bench.by_torch", "command.cli"} & set(listed)
    for name, said in listed.items():
        assert importlib.util.find_spec(f"experiments.{program.ALIASES.get(name, name)}")
        assert said.endswith((".", "?")), name
    assert "state of all runs" in listed["status"]

    monkeypatch.setattr(about, "describe", lambda: "cpc 7")
    said = run_program(monkeypatch, capsys)
    assert said.splitlines() == ["cpc 7", "", *lines]
    assert run_program(monkeypatch, capsys, "--version") == f"{cpc.__version__}\n"
    for given, hint in (("trian", "did you mean train?"), ("zzz", "--help")):
        with pytest.raises(SystemExit) as stop:
            run_program(monkeypatch, capsys, given, "--workdir=x")
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert (f"'{given}'" in said, hint in said, said.count("\n")) == (True, True, 1)


def test_windows_is_reported_by_packages_that_need_locks():
    """Computations can be imported without fcntl."""
    code = """
import importlib, sys
sys.modules["fcntl"] = None
import cpc.losses, cpc.negatives, cpc.estimators
for part in ("models", "data", "train", "evaluate", "results"):
    try:
        importlib.import_module(f"cpc.{part}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    assert all("needs Linux or macOS" in line for line in lines)
