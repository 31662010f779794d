"""Estimators of mutual information, and the tracker that computes estimates during training.

Estimates from scores are float32, regardless of the dtype of the scores and of `jax_enable_x64`.
Closed forms and estimates from samples are computed on the host and are Python floats.

Invalid arguments raise `UserError` with the name of the argument and a fix.
"""

from cpc.estimators.benchmark_tasks import beyond_normal as beyond_normal
from cpc.estimators.certify import Certificate as Certificate
from cpc.estimators.certify import certify as certify
from cpc.estimators.estimate import Estimate as Estimate
from cpc.estimators.estimate import cca as cca
from cpc.estimators.estimate import club as club
from cpc.estimators.estimate import donsker_varadhan as donsker_varadhan
from cpc.estimators.estimate import flo as flo
from cpc.estimators.estimate import info_nce as info_nce
from cpc.estimators.estimate import interpolated as interpolated
from cpc.estimators.estimate import js as js
from cpc.estimators.estimate import js_objective as js_objective
from cpc.estimators.estimate import ksg as ksg
from cpc.estimators.estimate import mine as mine
from cpc.estimators.estimate import ml_cpc as ml_cpc
from cpc.estimators.estimate import nwj as nwj
from cpc.estimators.estimate import smile as smile
from cpc.estimators.estimate import tuba as tuba
from cpc.estimators.tasks import Task as Task
from cpc.estimators.tasks import ar1_information as ar1_information
from cpc.estimators.tasks import binary_symmetric_task as binary_symmetric_task
from cpc.estimators.tasks import discrete_task as discrete_task
from cpc.estimators.tasks import gaussian_task as gaussian_task
from cpc.estimators.tasks import markov_task as markov_task
from cpc.estimators.tasks import one_hot_task as one_hot_task
from cpc.estimators.tracker import GroupSplit as GroupSplit
from cpc.estimators.tracker import Track as Track
from cpc.estimators.tracker import Tracker as Tracker
from cpc.estimators.tracker import bound_over_sequences as bound_over_sequences
from cpc.estimators.tracker import split_by_group as split_by_group
