"""Positive and negative scores to the loss of each anchor, in nats. Pure functions of arrays."""

from cpc.losses.blocks import AnchorLoss, AnchorScores, Choose
from cpc.losses.cpc_loss import Memory, OffsetSums, cpc_loss, sum_anchors
from cpc.losses.info_nce import info_nce

__all__ = [
    "AnchorLoss",
    "AnchorScores",
    "Choose",
    "Memory",
    "OffsetSums",
    "cpc_loss",
    "info_nce",
    "sum_anchors",
]
