"""Outcomes of attempts; `python -m tests.endurance` runs the campaigns."""

import pytest

from tests.endurance.__main__ import campaign
from tests.endurance.tries import CRASHED, HUNG, SILENT, SURVIVED, attempt


@pytest.mark.parametrize(("use", "outcome"), [
    (lambda said: said.append("left out") or 4, SURVIVED), (lambda said: 4, SILENT),
    (lambda said: {}["x"], CRASHED), (lambda said: any(iter(lambda: 0, 1)), HUNG),
])  # fmt: skip
def test_outcomes_of_attempts(use, outcome, monkeypatch):
    monkeypatch.setattr("tests.endurance.tries.LIMIT_SECONDS", 0.2)
    assert attempt("it", use, lambda found: found == 3).outcome == outcome


def test_campaign_of_folders(monkeypatch):
    monkeypatch.setenv("CPC_DATA", "")  # restored after the campaign
    ((name, one),) = campaign(1e-9, 16, ["folders"])
    assert (name, one.outcome) == ("folders", SURVIVED)
