"""The page of the way from n-grams to InfoNCE."""

from pathlib import Path

import pandas as pd

from cpc.files import read_json
from cpc.report.engine import Figure, Section, Table, write_page
from cpc.report.provenance import made_section
from cpc.results import read_run
from experiments.nce.page import numbers_table, sentence
from experiments.studies.from_ngram_to_infonce.figures import FIGURES

RECORD = "from_ngram_to_infonce.json"
INTRODUCTION = (
    "A language model's partition function is too dear; noise-contrastive estimation makes a "
    "classification of it, word2vec simplifies that, sampled softmax corrects it, and InfoNCE is "
    "its ranking form. Each step is measured here on words."
)


def write_study_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png of a study."""
    workdir = Path(workdir)
    run, findings = read_run(workdir), read_json(workdir / RECORD)
    checks = [check for one in findings.values() for check in one["rows"]]
    agreed = sum(check["agrees"] for check in checks)
    tables = [numbers_table(one) for one in findings.values()]
    if "perplexity" in findings:
        tables.insert(0, perplexity_table(findings["perplexity"]["curves"]["rows"]))
    return write_page(
        workdir,
        "report",
        "From n-grams to InfoNCE",
        str(workdir.resolve()),
        sections=[
            Section(
                "",
                [INTRODUCTION, f"{agreed} of {len(checks)} numbers agree with what was expected."],
            ),
            Section(
                "What is often said, and what became of it",
                [one["claim"] for one in findings.values() if one["claim"]],
            ),
            Section(
                "Figures",
                figures=[
                    Figure(name, FIGURES[name](one["curves"]), one["title"], sentence(one))
                    for name, one in findings.items()
                ],
            ),
            Section("Numbers", tables=tables),
            made_section(run.environment, run.config),
        ],
    )


def perplexity_table(rows) -> Table:
    """Return perplexity, self-normalised perplexity, log Z and time of each model."""
    names = ("perplexity", "self_normalised", "log_z_mean", "log_z_std", "seconds", "cpu_seconds")
    frame = pd.DataFrame(
        [{"model": name, **{one: row.get(one) for one in names}} for name, row in rows.items()]
    )
    frame.columns = [
        "model",
        "perplexity",
        "self-normalised",
        "mean log Z",
        "its spread",
        "s",
        "CPU s",
    ]
    formats = {"perplexity": ".1f", "self-normalised": ".1f", "mean log Z": ".2f",
               "its spread": ".2f", "s": ".1f", "CPU s": ".1f"}  # fmt: skip
    return Table("Perplexity", frame, "Of held-out text, all words as classes.", formats)
