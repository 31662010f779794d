"""The page that lays a run beside the paper, made from the run's recorded files."""

from cpc.report.page import write_report

__all__ = ["write_report"]
