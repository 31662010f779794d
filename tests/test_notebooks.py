"""Notebooks: paired with their sources and stored without outputs.

`make docs` runs tutorials, `make nightly` runs studies.
"""

import ast
import importlib
import json
import pathlib
import types

import jupytext
import pytest

SOURCES = sorted((pathlib.Path(__file__).parents[1] / "notebooks").rglob("*.py"))

OURS = ("cpc", "configs", "experiments")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_notebooks_are_paired_and_without_outputs(source):
    notebook = json.loads(source.with_suffix(".ipynb").read_text())
    wanted = jupytext.read(source)
    pairs = zip(notebook["cells"], wanted.cells, strict=True)
    for cell, want in pairs:
        assert "".join(cell["source"]) == want["source"], f"run: jupytext --sync {source}"
        assert not cell.get("outputs"), f"{source.stem} holds outputs"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_used_names_exist(source):
    """Studies run only at night, so missing names are found here."""
    tree = ast.parse(source.read_text())
    modules = {}  # imported names
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS:
            for alias in node.names:
                value = find(node.module, alias.name)
                modules[alias.asname or alias.name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if isinstance(module, types.ModuleType):
                assert hasattr(module, node.attr), f"{module.__name__}.{node.attr}"


def find(module, name):
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")
