"""A minute of the campaign against the whole; `python -m tests.endurance` goes on for an hour."""

import os
import subprocess
import sys

import pytest

from tests.commands import ONE_DEVICE, ROOT
from tests.endurance.__main__ import CAMPAIGNS
from tests.endurance.tries import CRASHED, HUNG, SILENT, SURVIVED, attempt


@pytest.mark.slow
def test_a_minute_of_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.endurance", "--seconds=60", "--seed=16"],
        cwd=ROOT,
        env={**os.environ, **ONE_DEVICE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["campaign", *CAMPAIGNS]


def raise_(error):
    raise error


def spin():
    while True:
        pass


@pytest.mark.parametrize(
    ("use", "outcome"),
    [
        (lambda said: 3, SURVIVED),
        (lambda said: 4, SILENT),
        (lambda said: said.append("left out") or 4, SURVIVED),
        (lambda said: raise_(KeyError("x")), CRASHED),
        (lambda said: spin(), HUNG),
    ],
)
def test_what_comes_of_a_try_is_told(use, outcome, monkeypatch):
    monkeypatch.setattr("tests.endurance.tries.LIMIT_SECONDS", 0.2)
    assert attempt("it", use, lambda found: found == 3).outcome == outcome
