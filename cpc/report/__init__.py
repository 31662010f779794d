"""HTML pages with text, figures and tables, such as the page of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cpc.report.words import Words

if TYPE_CHECKING:
    from cpc.report.run_page import SectionMaker

__all__ = ["Words", "closing_lines", "write_report"]


def write_report(
    workdir: str | Path, words: Words, sections: "Sequence[SectionMaker]" = ()
) -> Path:
    """Write report.html and figures/ into a run directory, and return the page's path."""
    # pandas, matplotlib and scikit-learn take seconds to import, and most commands need no page.
    from cpc.report import run_page

    return run_page.write_report(workdir, words, sections)


def closing_lines(workdir: str | Path, words: Words) -> list[str]:
    """Return the lines that a run prints at its end: a table of scores, and warnings."""
    from cpc.report import run_page

    return run_page.closing_lines(workdir, words)
