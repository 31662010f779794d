"""Mutual-information estimates, and the tracker that reads them off a training run."""

from cpc.estimators.sequences import bound_over_sequences
from cpc.estimators.tracker import Track, Tracker

__all__ = ["Track", "Tracker", "bound_over_sequences"]
