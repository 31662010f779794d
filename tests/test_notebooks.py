"""Notebooks: paired with their sources, without outputs, and they run."""

import json
import os
import pathlib
import subprocess
import sys

import jupytext
import pytest

from tests.commands import ONE_DEVICE_POLISHED

SOURCES = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_paired_and_without_outputs(source):
    notebook = json.loads(source.with_suffix(".ipynb").read_text())
    wanted = jupytext.read(source)
    pairs = zip(notebook["cells"], wanted.cells, strict=True)
    for cell, want in pairs:
        assert "".join(cell["source"]) == want["source"], f"run: jupytext --sync {source}"
        assert not cell.get("outputs"), f"{source.stem} holds outputs"


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_runs(source):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbmake", "-q", "-p", "no:cacheprovider", "--noconftest",
         "-W", "ignore", source.with_suffix(".ipynb")],  # ours would make eight devices of the CPU
        capture_output=True, text=True, cwd=source.parent,
        env={**os.environ, **ONE_DEVICE_POLISHED},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
