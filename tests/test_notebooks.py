"""Notebooks: paired with their sources, and without outputs. `make docs` runs them."""

import json
import pathlib

import jupytext
import pytest

SOURCES = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_paired_and_without_outputs(source):
    notebook = json.loads(source.with_suffix(".ipynb").read_text())
    wanted = jupytext.read(source)
    pairs = zip(notebook["cells"], wanted.cells, strict=True)
    for cell, want in pairs:
        assert "".join(cell["source"]) == want["source"], f"run: jupytext --sync {source}"
        assert not cell.get("outputs"), f"{source.stem} holds outputs"
