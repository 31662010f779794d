"""Outcomes of attempts; `python -m tests.endurance` runs the campaigns."""

from tests.endurance.__main__ import campaign
from tests.endurance.tries import CRASHED, HUNG, SILENT, SURVIVED, attempt


def test_outcomes_of_attempts(monkeypatch):
    monkeypatch.setattr("tests.endurance.tries.LIMIT_SECONDS", 0.2)
    uses = {
        SURVIVED: lambda said: said.append("left out") or 4, SILENT: lambda said: 4,
        CRASHED: lambda said: {}["x"], HUNG: lambda said: any(iter(lambda: 0, 1)),
    }  # fmt: skip
    for outcome, use in uses.items():
        assert attempt("it", use, lambda found: found == 3).outcome == outcome
    monkeypatch.setenv("CPC_DATA", "")  # restored after the campaign
    tried = [*campaign(1e-9, 16, ["folders"])]
    assert [(name, one.outcome) for name, one in tried] == [("folders", SURVIVED)]
