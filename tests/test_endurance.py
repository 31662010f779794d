"""Outcomes of a try; `python -m tests.endurance` runs the campaign, for an hour by default."""

import pytest

from tests.endurance.__main__ import CAMPAIGNS, campaign
from tests.endurance.tries import CRASHED, HUNG, SILENT, SURVIVED, attempt


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
def test_an_attempt_has_its_outcome(use, outcome, monkeypatch):
    monkeypatch.setattr("tests.endurance.tries.LIMIT_SECONDS", 0.2)
    assert attempt("it", use, lambda found: found == 3).outcome == outcome


def test_a_campaign_tries_what_it_is_given(monkeypatch):
    monkeypatch.setenv("CPC_DATA", "")  # which a campaign sets
    assert {*CAMPAIGNS} == {"configs", "folders", "commands", "kills", "damage", "exports"}
    tried = [*campaign(1e-9, 16, ["folders"])]
    assert [(name, one.outcome) for name, one in tried] == [("folders", SURVIVED)]
