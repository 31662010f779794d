"""Mutual-information estimates, and the tracker that reads them off a training run.

Estimates from scores are float32, whatever dtype comes in and whether `jax_enable_x64` is set or
not; closed forms and estimates from samples, which are made on the host, are Python floats.
"""

from cpc.estimators.benchmark_tasks import beyond_normal
from cpc.estimators.certify import Certificate, certify
from cpc.estimators.contrastive import info_nce, interpolated, ml_cpc
from cpc.estimators.discrete_tasks import (
    binary_symmetric_task,
    discrete_task,
    markov_task,
    one_hot_task,
)
from cpc.estimators.estimate import Estimate
from cpc.estimators.samples import cca, ksg
from cpc.estimators.sequences import bound_over_sequences
from cpc.estimators.tasks import Task, ar1_information, gaussian_task
from cpc.estimators.tracker import Track, Tracker
from cpc.estimators.variational import (
    club,
    donsker_varadhan,
    flo,
    js,
    js_objective,
    mine,
    nwj,
    smile,
    tuba,
)

__all__ = [
    "Certificate",
    "Estimate",
    "Task",
    "Track",
    "Tracker",
    "ar1_information",
    "beyond_normal",
    "binary_symmetric_task",
    "bound_over_sequences",
    "cca",
    "certify",
    "club",
    "discrete_task",
    "donsker_varadhan",
    "flo",
    "gaussian_task",
    "info_nce",
    "interpolated",
    "js",
    "js_objective",
    "ksg",
    "markov_task",
    "mine",
    "ml_cpc",
    "nwj",
    "one_hot_task",
    "smile",
    "tuba",
]
