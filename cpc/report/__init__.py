"""The pages that lay a run beside the paper, and runs beside each other, from recorded files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["write_comparison", "write_report", "write_reproduction"]


def write_report(workdir: str | Path) -> Path:
    """Write report.html and figures/ into a run directory; see `cpc.report.page`."""
    # matplotlib and scikit-learn take seconds to import, and most commands end without a page.
    from cpc.report import page

    return page.write_report(workdir)


def write_comparison(
    runs: Sequence[tuple[str, Path]], folder: Path, paper: Mapping[str, str] | None = None
) -> Path:
    """Write comparison.html, .md and .json of named runs; see `cpc.report.comparison_page`."""
    from cpc.report import comparison_page

    return comparison_page.write_comparison(runs, folder, paper)


def write_reproduction(folder: str | Path) -> Path:
    """Write reproduction.html, .md and .json of a folder; see `cpc.report.reproduction_page`."""
    from cpc.report import reproduction_page

    return reproduction_page.write_reproduction(Path(folder))
