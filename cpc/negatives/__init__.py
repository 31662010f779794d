"""Who is contrasted with whom: rules over positions, samplers, noise, closed forms."""

from cpc.negatives.alias import (
    AliasTable,
    alias_table,
    draw,
    draw_unique,
)
from cpc.negatives.audit import (
    Audit,
    AuditRow,
    audit,
    audit_queue,
    audit_rule,
    audit_sampler,
    audit_table,
    format_audit,
)
from cpc.negatives.closed_forms import (
    Pool,
    Window,
    compare_pool,
    effective_margin,
    exclude_window,
    exclusion_window,
    min_negatives,
    min_negatives_without_replacement,
)
from cpc.negatives.hits import (
    accidental_hits,
    hit_rate,
)
from cpc.negatives.mining import hardest, mix_keys, mixed, percentile_ring, semi_hard
from cpc.negatives.noise import (
    expected_count,
    log_uniform,
    probabilities,
    solve_alpha,
    uniform,
    unigram,
)
from cpc.negatives.proposal import Proposal, propose, proposed
from cpc.negatives.queue import Queue, ages, make_queue, push
from cpc.negatives.rules import (
    batch,
    excluding_sequence,
    one_per_sequence,
    outside_window,
    own_sequence,
    same_group,
    within_shards,
)
from cpc.negatives.samplers import sample_uniform, uniform_draws, uniform_subset
from cpc.negatives.temperature import (
    bounded_temperature,
    entropy,
    hold_entropy,
    negative_weights,
    raw_temperature,
    solve_temperature,
)
from cpc.types import Rule, is_positive

__all__ = [
    "AliasTable",
    "Audit",
    "AuditRow",
    "Pool",
    "Proposal",
    "Queue",
    "Rule",
    "Window",
    "accidental_hits",
    "ages",
    "alias_table",
    "audit",
    "audit_queue",
    "audit_rule",
    "audit_sampler",
    "audit_table",
    "batch",
    "bounded_temperature",
    "compare_pool",
    "draw",
    "draw_unique",
    "effective_margin",
    "entropy",
    "exclude_window",
    "excluding_sequence",
    "exclusion_window",
    "expected_count",
    "format_audit",
    "hardest",
    "hit_rate",
    "hold_entropy",
    "is_positive",
    "log_uniform",
    "make_queue",
    "min_negatives",
    "min_negatives_without_replacement",
    "mix_keys",
    "mixed",
    "negative_weights",
    "one_per_sequence",
    "outside_window",
    "own_sequence",
    "percentile_ring",
    "probabilities",
    "propose",
    "proposed",
    "push",
    "raw_temperature",
    "same_group",
    "sample_uniform",
    "semi_hard",
    "solve_alpha",
    "solve_temperature",
    "uniform",
    "uniform_draws",
    "uniform_subset",
    "unigram",
    "within_shards",
]
