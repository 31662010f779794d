"""The page of findings: under each figure what was expected, and what came out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.figure

from cpc.files import read_json
from cpc.report.engine import Figure, Section, Table, write_page
from cpc.report.provenance import made_section
from cpc.results import read_run
from cpc.types import UserError
from experiments.studies.nce.figures import FIGURES
from experiments.studies.nce.findings import Finding, checks_frame, disagreeing

INTRODUCTION = (
    "Claims about noise-contrastive estimation and InfoNCE, each on a problem small enough to "
    "check. Lines are what theory gives, points are what the losses of this package gave."
)


def write_theory_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png from nce.json of a run.

    Raises:
        UserError: the directory has no nce.json.
    """
    workdir = Path(workdir)
    if not (workdir / "nce.json").exists():
        raise UserError(f"{workdir} has no nce.json: run experiments.studies.nce there first")
    return write_findings_page(
        workdir,
        read_json(workdir / "nce.json"),
        "Theory as experiments",
        INTRODUCTION,
        "What is often said, and fails",
        FIGURES,
    )


def write_findings_page(
    workdir: Path,
    findings: Mapping[str, Finding],
    title: str,
    introduction: str,
    claims: str,
    figures: Mapping[str, Callable[[Any], matplotlib.figure.Figure]],
    tables: Sequence[Table] = (),
) -> Path:
    """Write report.html and figures/*.png of a run's findings.

    `claims` is the heading over what is often said; `tables` come before the findings' own.
    """
    run = read_run(workdir)
    checks = [check for one in findings.values() for check in one["rows"]]
    agreed = sum(check["agrees"] for check in checks)
    return write_page(
        workdir,
        "report",
        title,
        str(workdir.resolve()),
        sections=[
            Section(
                "",
                [introduction, f"{agreed} of {len(checks)} numbers agree with what was expected."],
            ),
            Section(claims, [one["claim"] for one in findings.values() if one["claim"]]),
            Section(
                "Figures",
                figures=[
                    Figure(name, figures[name](one["curves"]), one["title"], sentence(one))
                    for name, one in findings.items()
                ],
            ),
            Section("Numbers", tables=[*tables, *map(numbers_table, findings.values())]),
            made_section(run.environment, run.config),
        ],
    )


def sentence(finding: Finding) -> str:
    """Return what was expected, what was measured, and whether they agree.

    >>> sentence({"expected": "log 2", "measured": "0.6931", "agrees": True, "rows": []})
    'Expected: log 2. Measured: 0.6931. They agree.'
    """
    wrong = "; ".join(disagreeing(finding))
    end = f"They do not agree in: {wrong}." if wrong else "They agree."
    text = f"Expected: {finding['expected']}. Measured: {finding['measured']}. {end}"
    return text.replace(" -", " −")


def numbers_table(finding: Finding) -> Table:
    """Return each number with its tolerance and the tolerance's reason."""
    frame = checks_frame(finding)
    strong = [place for place, agrees in enumerate(frame.agrees) if not agrees]
    frame["relation"] = frame.relation.map({"=": "", "<=": "≤", ">=": "≥"})
    frame = frame.rename(columns={"what": "number", "relation": "", "reason": "its reason"})
    formats = {"expected": ".5g", "measured": ".5g", "tolerance": ".2g"}
    return Table(finding["title"], frame, formats=formats, strong=strong)
