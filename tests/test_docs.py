"""Tests that documented commands parse, Python blocks run and images have descriptions."""

import io
import pathlib
import re
import runpy
import shlex
import sys
import warnings

import numpy as np
import pytest
import scipy.stats
from absl import app, flags

from cpc import __main__ as program
from cpc.data.__main__ import SETS, TEXTS
from experiments.command import cli
from tests import fake_torch

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = r"^(?:    |)(?:CPC\S+=\S+ )?(?:python -m (?=cpc|experiments)|(?=cpc ))(\S+.*)"
#: Commands that take words which are not flags.
TAKE_WORDS = ("experiments.status", "experiments.compare", "experiments.hub")


def shown_commands():
    """Return the commands of ours that are shown, with their pages."""
    return {
        tuple(shlex.split(line, comments=True)): page.stem
        for page in PAGES
        for line in re.findall(SHOWN, re.sub(r" *\\\n\s*", " ", page.read_text()), re.M)
    }


def parse(monkeypatch, module, words):
    """Return the words that remain when a command has parsed its flags; its main does not run."""
    known, rest = flags.FLAGS, []
    homes = {name: known.find_module_defining_flag(name) or "" for name in known}
    shared = {flag.name for flag in vars(cli).values() if isinstance(flag, flags.FlagHolder)}
    shared |= {name for name, home in homes.items() if home.startswith("absl.")}
    others = {name: known[name] for name in homes.keys() - shared}  # may have a command's names
    for name in others:
        delattr(known, name)
    before = {*known}
    monkeypatch.setattr(sys, "argv", [module, *words])
    monkeypatch.setattr(app, "run", lambda main, flags_parser: rest.extend(flags_parser(sys.argv)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a command may have been imported already
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        for name in {*known} - before:
            delattr(known, name)
        for name, flag in others.items():
            known[name] = flag
        known.unparse_flags()
    return rest[1:]


def test_commands_that_are_shown_parse(monkeypatch, capsys):
    for name in ("stdout", "unraisablehook"):  # which a command replaces
        monkeypatch.setattr(sys, name, io.StringIO() if name == "stdout" else sys.unraisablehook)
    commands, wrong = program.find_commands(ROOT), []
    for (first, *words), page in shown_commands().items():
        if first == "cpc.data":
            wrong += [(page, words)] * (not set("+".join(words).split("+")) <= {*SETS, *TEXTS})
        if first == "cpc.data" or not words:
            continue
        if first == "cpc":
            name, *words = words
            name = program.ALIASES.get(name, name)
            assert name in commands, page
            first = f"experiments.{name}"
        try:
            rest = parse(monkeypatch, first, words)
        except SystemExit:
            rest = capsys.readouterr().err
        if rest and (first not in TAKE_WORDS or isinstance(rest, str)):
            wrong.append((page, first, words, rest))
    assert len(shown_commands()) > 50
    assert not wrong


def test_merges_of_pages_are_resolved():
    assert not [page for page in PAGES if re.search(r"^(<<<<<<<|>>>>>>>) ", page.read_text(), re.M)]


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


LOOPS = ROOT / "docs" / "only_the_loss.md"
PYTHON = [page for page in PAGES if page != LOOPS and python_blocks(page)]


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.stem)
def test_python_that_is_shown_runs(page, tmp_path, monkeypatch, capsys):
    """Run the blocks of a page in order, except torch blocks, which need a missing package."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "60k_epoch4.pt").touch()
    fake_torch.install(monkeypatch, {"weights": fake_torch.released_weights()})
    names = {"__name__": "shown", "x": np.zeros((1, 3200), np.float32)}
    for block in python_blocks(page):
        if "import torch\n" not in block:
            exec(compile(block, str(page), "exec"), names)
    if page.stem == "README":
        check_training(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("block", python_blocks(LOOPS), ids=["jax", "nnx", "equinox"])
def test_loop_is_complete_and_finds_known_information(block, capsys):
    """From 0, log N - L comes close to the information of the walks, and a bound stays below."""
    assert sum(bool(line) for line in block.splitlines()) <= 30
    exec(compile(block, str(LOOPS), "exec"), {"__name__": "shown"})
    first, *_, last = (
        np.array(re.findall(r"-?\d+\.\d*(?:e-\d+)?", line), float)
        for line in capsys.readouterr().out.splitlines()
    )
    known = np.log(16) - scipy.stats.binom([1, 2], 0.9).entropy()[: len(last)]
    np.testing.assert_allclose(first, 0, atol=0.05)
    np.testing.assert_allclose(last, known, atol=0.2)
    assert "one_per_sequence" not in block or (last < known).all()


def check_training(lines):
    """The example's loss falls from step to step, and log N - L rises from about 0 to above."""
    loss = [float(re.findall(r"loss (\S+)", line)[0]) for line in lines]
    value = [[float(v) for v in line[line.index("[") + 1 : -1].split()] for line in lines]
    assert len(loss) == 10
    assert (np.diff(loss) < 0).all()
    assert -0.5 < min(value[0]) < max(value[0]) < 0.05
    assert min(value[-1]) > 0.1
