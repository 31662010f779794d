"""Positive and negative scores to the loss of each anchor, in nats. Pure functions of arrays.

A loss takes the scores of the positives (m,), those of the negatives (m, n) and `where`, the mask
of the negatives that count, and returns the losses (m,). Masked entries may hold NaN and get a
gradient of exactly zero; an anchor without a negative has loss 0. Shapes that do not match and
impossible numbers, such as a temperature of 0, raise `UserError`; traced numbers are not checked.

Losses, sums and scores are float32 and counts int32 or float32, whatever dtype comes in and whether
`jax_enable_x64` is set or not; gradients have the dtype of what they are taken by.
"""

from cpc.losses.acpc import acpc_loss, path_cost, path_weights
from cpc.losses.candidate_sampling import SamplingOptions, candidate_sampling
from cpc.losses.cpc_loss import (
    CPCOptions,
    MemoryBank,
    OffsetSums,
    aligned_losses,
    cpc_loss,
    sum_anchors,
)
from cpc.losses.geometry import alignment, uniformity
from cpc.losses.info_nce import info_nce
from cpc.losses.noise_contrastive import nce, negative_sampling, ranking_nce
from cpc.losses.pairs import logistic_pairs, softmax_pairs
from cpc.losses.pairwise import sigmoid, triplet
from cpc.losses.reweighted import debiased, decoupled, decoupled_weights, hard_weighted
from cpc.losses.sampled import full_logistic, full_softmax, sampled_logistic, sampled_softmax
from cpc.losses.streaming import (
    StreamingOptions,
    streaming_info_nce,
    streaming_symmetric_info_nce,
)
from cpc.losses.table import (
    LOSSES,
    AnchorLoss,
    Description,
    LossSpec,
    describe,
    describe_aligned,
)
from cpc.losses.tiles import AnchorScores
from cpc.losses.views import nt_xent, sup_con, view_scores

__all__ = [
    "LOSSES",
    "AnchorLoss",
    "AnchorScores",
    "CPCOptions",
    "Description",
    "LossSpec",
    "MemoryBank",
    "OffsetSums",
    "SamplingOptions",
    "StreamingOptions",
    "acpc_loss",
    "aligned_losses",
    "alignment",
    "candidate_sampling",
    "cpc_loss",
    "debiased",
    "decoupled",
    "decoupled_weights",
    "describe",
    "describe_aligned",
    "full_logistic",
    "full_softmax",
    "hard_weighted",
    "info_nce",
    "logistic_pairs",
    "nce",
    "negative_sampling",
    "nt_xent",
    "path_cost",
    "path_weights",
    "ranking_nce",
    "sampled_logistic",
    "sampled_softmax",
    "sigmoid",
    "softmax_pairs",
    "streaming_info_nce",
    "streaming_symmetric_info_nce",
    "sum_anchors",
    "sup_con",
    "triplet",
    "uniformity",
    "view_scores",
]
