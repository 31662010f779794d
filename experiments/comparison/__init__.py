"""Runs beside each other: the page of a sweep, of a reproduction, and of `experiments.compare`."""

from experiments.comparison.figures import dots
from experiments.comparison.page import read_runs, write_comparison

__all__ = ["dots", "read_runs", "write_comparison"]
