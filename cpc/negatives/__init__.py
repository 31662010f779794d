"""Who is contrasted with whom: rules over positions, and samplers."""

from cpc.negatives.rules import (
    Rule,
    batch,
    excluding_sequence,
    one_per_sequence,
    outside_window,
    own_sequence,
    same_group,
    within_shards,
)
from cpc.negatives.samplers import sample_uniform

__all__ = [
    "Rule",
    "batch",
    "excluding_sequence",
    "one_per_sequence",
    "outside_window",
    "own_sequence",
    "same_group",
    "sample_uniform",
    "within_shards",
]
