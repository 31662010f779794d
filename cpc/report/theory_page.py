"""The page of theory as experiments: under each figure what was expected, and what came out."""

from pathlib import Path
from typing import Any

from cpc.report import markup
from cpc.report.draw import save_picture
from cpc.report.records import read_json
from cpc.report.tables import provenance
from cpc.report.theory_figures import FIGURES
from cpc.types import UserError

TITLE = "Theory as experiments"
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
    findings = read_json(workdir / "nce.json")
    if not findings:
        raise UserError(f"{workdir} has no nce.json: run experiments.nce there first")
    figures = [
        save_picture(workdir, name, FIGURES[name](one["curves"]), one["title"], sentence(one))
        for name, one in findings.items()
    ]
    claims = [one["claim"] for one in findings.values() if one["claim"]]
    environment = read_json(workdir / "environment.json") or {}
    num_rows = sum(len(one["rows"]) for one in findings.values())
    num_agree = sum(row["agrees"] for one in findings.values() for row in one["rows"])
    body = "\n".join(
        [
            f"<h1>{TITLE}</h1>",
            markup.paragraph(str(workdir.resolve()), "lead"),
            markup.paragraph(INTRODUCTION),
            markup.paragraph(f"{num_agree} of {num_rows} numbers agree with what was expected."),
            markup.section("What is often said, and fails", markup.bullets(claims)),
            markup.section("Figures", *figures),
            markup.section("Numbers", *(rows_table(one) for one in findings.values())),
            markup.section("How it was made", *provenance(environment, {})),
        ]
    )
    path = workdir / "report.html"
    path.write_text(markup.page(TITLE, body), encoding="utf-8")
    return path


def sentence(finding: dict[str, Any]) -> str:
    """Expected, measured, and whether they agree.

    >>> sentence({"expected": "log 2", "measured": "0.6931", "agrees": True, "rows": []})
    'Expected: log 2. Measured: 0.6931. They agree.'
    """
    wrong = [row["what"] for row in finding["rows"] if not row["agrees"]]
    end = "They agree." if finding["agrees"] else f"They do not agree in: {'; '.join(wrong)}."
    text = f"Expected: {finding['expected']}. Measured: {finding['measured']}. {end}"
    return text.replace(" -", " −")


def rows_table(finding: dict[str, Any]) -> str:
    """Each number with its tolerance and the tolerance's reason."""
    signs = {"=": "", "<=": "≤ ", ">=": "≥ "}
    body = [
        [
            row["what"],
            signs[row["relation"]] + f"{row['expected']:.5g}".replace("-", "−"),
            f"{row['measured']:.5g}".replace("-", "−"),
            f"{row['tolerance']:.2g}",
            row["reason"],
            "yes" if row["agrees"] else "no",
        ]
        for row in finding["rows"]
    ]
    return markup.table(
        ["number", "expected", "measured", "tolerance", "its reason", "agrees"],
        body,
        title=finding["title"],
        kinds=["" if row["agrees"] else "strong" for row in finding["rows"]],
    )
