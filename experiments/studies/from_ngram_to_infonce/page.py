"""The page of the way from n-grams to InfoNCE."""

from pathlib import Path

import pandas as pd

from cpc.files import read_json
from cpc.report.engine import Table
from experiments.studies.from_ngram_to_infonce.figures import FIGURES
from experiments.studies.nce.page import write_findings_page

RECORD = "from_ngram_to_infonce.json"
INTRODUCTION = (
    "A language model's partition function is too dear; noise-contrastive estimation makes a "
    "classification of it, word2vec simplifies that, sampled softmax corrects it, and InfoNCE is "
    "its ranking form. Each step is measured here on words."
)


def write_study_report(workdir: str | Path) -> Path:
    """Write report.html and figures/*.png of a study."""
    workdir = Path(workdir)
    findings = read_json(workdir / RECORD)
    measured = findings.get("perplexity")
    return write_findings_page(
        workdir,
        findings,
        "From n-grams to InfoNCE",
        INTRODUCTION,
        "What is often said, and what became of it",
        FIGURES,
        [perplexity_table(measured["curves"]["rows"])] if measured else [],
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
