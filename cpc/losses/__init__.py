"""Contrastive losses, as pure functions of positive and negative scores.

A loss takes the scores of the positives (m,), the scores of the negatives (m, n) and a mask of the
negatives, `where`, and returns one loss per anchor (m,). Masked entries may be NaN and receive a
gradient of exactly zero. An anchor without negatives has a loss of 0. Mismatched shapes and
invalid values, such as a temperature of 0, raise `UserError`. Traced values are not checked.

Losses, sums and scores are float32 and counts are int32 or float32, regardless of the dtype of the
inputs and of `jax_enable_x64`. Gradients have the dtype of the differentiated array.
"""

from cpc.losses.acpc import acpc_loss as acpc_loss
from cpc.losses.acpc import path_cost as path_cost
from cpc.losses.acpc import path_weights as path_weights
from cpc.losses.cpc_loss import CPCOptions as CPCOptions
from cpc.losses.cpc_loss import MemoryBank as MemoryBank
from cpc.losses.cpc_loss import OffsetSums as OffsetSums
from cpc.losses.cpc_loss import aligned_losses as aligned_losses
from cpc.losses.cpc_loss import cpc_loss as cpc_loss
from cpc.losses.cpc_loss import sum_anchors as sum_anchors
from cpc.losses.noise_contrastive import debiased as debiased
from cpc.losses.noise_contrastive import decoupled as decoupled
from cpc.losses.noise_contrastive import decoupled_weights as decoupled_weights
from cpc.losses.noise_contrastive import hard_weighted as hard_weighted
from cpc.losses.noise_contrastive import info_nce as info_nce
from cpc.losses.noise_contrastive import nce as nce
from cpc.losses.noise_contrastive import negative_sampling as negative_sampling
from cpc.losses.noise_contrastive import ranking_nce as ranking_nce
from cpc.losses.sampled import SamplingOptions as SamplingOptions
from cpc.losses.sampled import candidate_sampling as candidate_sampling
from cpc.losses.sampled import full_logistic as full_logistic
from cpc.losses.sampled import full_softmax as full_softmax
from cpc.losses.sampled import sampled_logistic as sampled_logistic
from cpc.losses.sampled import sampled_softmax as sampled_softmax
from cpc.losses.streaming import StreamingOptions as StreamingOptions
from cpc.losses.streaming import streaming_info_nce as streaming_info_nce
from cpc.losses.streaming import streaming_symmetric_info_nce as streaming_symmetric_info_nce
from cpc.losses.table import LOSSES as LOSSES
from cpc.losses.table import AnchorLoss as AnchorLoss
from cpc.losses.table import Description as Description
from cpc.losses.table import LossSpec as LossSpec
from cpc.losses.table import describe as describe
from cpc.losses.table import describe_aligned as describe_aligned
from cpc.losses.tiles import AnchorScores as AnchorScores
from cpc.losses.views import alignment as alignment
from cpc.losses.views import logistic_pairs as logistic_pairs
from cpc.losses.views import nt_xent as nt_xent
from cpc.losses.views import sigmoid as sigmoid
from cpc.losses.views import softmax_pairs as softmax_pairs
from cpc.losses.views import sup_con as sup_con
from cpc.losses.views import triplet as triplet
from cpc.losses.views import uniformity as uniformity
from cpc.losses.views import view_scores as view_scores
