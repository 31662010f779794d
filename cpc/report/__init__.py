"""The page that lays a run beside the paper, made from the run's recorded files."""

from pathlib import Path

__all__ = ["write_report"]


def write_report(workdir: str | Path) -> Path:
    """Write report.html and figures/ into a run directory; see `cpc.report.page`."""
    # matplotlib and scikit-learn take seconds to import, and most commands end without a page.
    from cpc.report import page

    return page.write_report(workdir)
