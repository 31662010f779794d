"""What README and the site show: commands that parse, Python that runs, pictures that say what."""

import inspect
import pathlib
import re
import runpy
import shlex

import numpy as np
import pytest

from cpc import losses, negatives, types
from tests import commands, fake_torch

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: A word that is no flag: a command that gets as far as to refuse it has read all before it.
STOP = "nothing-is-run"
#: Commands that take words which are no flags.
TAKE_WORDS = ("experiments.status", "experiments.compare", "experiments.hub", "cpc.data")


def shown_commands():
    """Yield each command of ours that is shown, once, and where."""
    seen = set()
    for page in PAGES:
        text = re.sub(r" *\\\n\s*", " ", page.read_text())
        for line in re.findall(
            r"^(?:    |)(?:CPC\S+=\S+ )?(?:python -m (?=cpc|experiments)|(?=cpc ))(\S+.*)",
            text,
            re.M,
        ):
            words = tuple(shlex.split(line, comments=True))
            if words not in seen:
                seen.add(words)
                yield pytest.param(words, id=f"{page.stem}: {' '.join(words)[:70]}")


@pytest.mark.slow
@pytest.mark.parametrize("words", [*shown_commands()])
def test_commands_that_are_shown_parse(words):
    done = commands.run_anyhow(*words, STOP)
    assert done.returncode == 2, done.stdout + done.stderr
    assert (
        words == ("cpc",)
        or ".".join(words[:2]).replace("cpc.", "experiments.") in TAKE_WORDS
        or words[0] in TAKE_WORDS
        or f"{STOP!r} is not a flag" in done.stderr
    ), done.stderr
    assert "Unknown" not in done.stderr, done.stderr


PYTHON = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.stem)
def test_python_that_is_shown_runs(page, tmp_path, monkeypatch, capsys):
    """The blocks of a page one after the other, but for those of torch, which is not installed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "60k_epoch4.pt").touch()
    fake_torch.install(monkeypatch, {"weights": fake_torch.released_weights()})
    names = {"__name__": "shown", "x": np.zeros((1, 3200), np.float32)}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        if "import torch\n" not in block:
            exec(compile(block, str(page), "exec"), names)
    if page.stem == "README":
        check_training(capsys.readouterr().out.splitlines())


def check_training(lines):
    """The example's loss falls from step to step, and log N - L rises from about 0 to above."""
    loss = [float(re.findall(r"loss (\S+)", line)[0]) for line in lines]
    value = [[float(v) for v in line[line.index("[") + 1 : -1].split()] for line in lines]
    assert len(loss) == 10
    assert (np.diff(loss) < 0).all()
    assert -0.5 < min(value[0]) < max(value[0]) < 0.05
    assert min(value[-1]) > 0.1


def test_api_pages_lead_with_functions():
    pytest.importorskip("sphinx")
    group = runpy.run_path(str(ROOT / "docs" / "conf.py"))["group_members"]
    functions, _, classes = group(losses, ["cpc_loss"])
    assert functions[0] == "cpc_loss"
    assert {"info_nce", "nt_xent"} <= {*functions}
    assert {"AnchorScores", "OffsetSums"} <= {*classes}
    public = {n for n, value in vars(losses).items() if n[0] != "_" and not inspect.ismodule(value)}
    assert {*functions, *classes} >= public - {"AnchorLoss", "LOSSES"}
    functions, rules, _ = group(negatives)
    assert {"batch", "one_per_sequence"} <= {*rules}
    assert {"audit", "outside_window"} <= {*functions}
    assert "NegativeRule" in group(types)[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_say_what_they_show(page):
    text = page.read_text()
    assert "![](" not in text
    assert text.count("```{figure}") == text.count(":alt:")
