"""Positive and negative scores to the loss of each anchor, in nats. Pure functions of arrays."""

from cpc.losses.blocks import AnchorLoss, Choose
from cpc.losses.cpc_loss import Memory, OffsetSums, cpc_loss, sum_anchors
from cpc.losses.describe import Description, describe
from cpc.losses.geometry import alignment, uniformity
from cpc.losses.info_nce import info_nce
from cpc.losses.noise_contrastive import nce, negative_sampling, ranking_nce
from cpc.losses.pairwise import sigmoid, triplet
from cpc.losses.places import same_place_losses
from cpc.losses.reweighted import debiased, decoupled, decoupled_weights, hard_weighted
from cpc.losses.sampled import full_logistic, full_softmax, sampled_logistic, sampled_softmax
from cpc.losses.sizes import criterion_bytes, largest_block
from cpc.losses.streaming import Standing, streaming_info_nce
from cpc.losses.symmetric import streaming_symmetric_info_nce
from cpc.losses.tiles import AnchorScores
from cpc.losses.views import nt_xent, sup_con, view_scores

__all__ = [
    "AnchorLoss",
    "AnchorScores",
    "Choose",
    "Description",
    "Memory",
    "OffsetSums",
    "Standing",
    "alignment",
    "cpc_loss",
    "criterion_bytes",
    "debiased",
    "decoupled",
    "decoupled_weights",
    "describe",
    "full_logistic",
    "full_softmax",
    "hard_weighted",
    "info_nce",
    "largest_block",
    "nce",
    "negative_sampling",
    "nt_xent",
    "ranking_nce",
    "same_place_losses",
    "sampled_logistic",
    "sampled_softmax",
    "sigmoid",
    "streaming_info_nce",
    "streaming_symmetric_info_nce",
    "sum_anchors",
    "sup_con",
    "triplet",
    "uniformity",
    "view_scores",
]
