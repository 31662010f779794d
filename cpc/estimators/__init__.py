"""Mutual-information estimates, and the tracker that reads them off a training run."""

from cpc.estimators.sequences import bound_over_sequences
from cpc.estimators.tasks import Task, gaussian_task
from cpc.estimators.tracker import Track, Tracker

__all__ = ["Task", "Track", "Tracker", "bound_over_sequences", "gaussian_task"]
