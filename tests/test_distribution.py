"""The wheel: its content, and its command without a checkout."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.commands import ONE_DEVICE

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, made = (tmp_path_factory.mktemp(name) for name in ("source", "made"))
    for name in ("cpc", "configs", "experiments"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    (source / "build" / "lib" / "stale").mkdir(parents=True)
    (source / "stale.py").write_text("")
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(made)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(made.glob("cpc_jax-*.whl"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("installed")


@pytest.fixture(scope="module")
def call(wheel, folder):
    """Run Python with only the wheel, next to user packages of the same names."""
    target, here = folder / "target", folder / "here"
    zipfile.ZipFile(wheel).extractall(target)
    commit = ["-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "m"]
    for words in (["init", "-q"], commit):  # within a foreign repository
        subprocess.run(["git", *words], cwd=target, check=True)
    for name in ("experiments", "configs", "cpc"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("raise RuntimeError('not of cpc')")
    environment = {**os.environ, **ONE_DEVICE, "PYTHONPATH": str(target)}

    def run(code, *words, status=0):
        command = [sys.executable, "-P", "-c", code, *words]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_wheel_has_one_top_level_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    info = next(name for name in names if name.endswith("METADATA")).split("/")[0]
    assert {name.split("/")[0] for name in names} == {"cpc", info}
    packed = {name.removeprefix("cpc/_checkout/") for name in names if name.startswith("cpc/")}
    assert packed == {
        path.relative_to(ROOT).as_posix()
        for top in ("configs", "cpc", "experiments")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_experiments_and_configs_are_not_importable(call, folder):
    code = (
        "import cpc, importlib.util as u; print(cpc.__file__, cpc.__version__, "
        "*map(u.find_spec, ('experiments', 'configs')))"
    )
    said = call(code).split()  # the version without git
    assert said == [f"{folder / 'target' / 'cpc' / '__init__.py'}", "0.1.0.dev0", "None", "None"]


def test_sweep_and_its_cells_need_no_checkout(call, wheel, folder):
    archive = zipfile.ZipFile(wheel)
    (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "cpc = cpc.__main__:main" in archive.read(entry).decode().splitlines()
    said = call(
        "from cpc.__main__ import main; main()", "sweep", "--config", "series_files", "--cell",
        "one:", "--config.data.path=nowhere", "--workdir", "runs", status=1,
    )  # fmt: skip
    assert "nowhere" in said
    assert "data.path" in said
    runs = folder / "here" / "runs"
    recorded = json.loads((runs / "one" / "environment.json").read_text())
    assert recorded["cpc"] == "0.1.0.dev0"
    assert recorded["git_revision"] is None
    assert recorded["command"].startswith("cpc train --config series_files --config.")
    assert (runs / "comparison.html").exists()  # uses a template
