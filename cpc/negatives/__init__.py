"""Who is contrasted with whom: rules over positions, samplers, noise, closed forms.

Shapes that do not match and impossible numbers, such as a probability of 2, raise `UserError`,
which names the argument; traced numbers are not checked.

Results are float32 and int32, whatever dtype comes in and whether `jax_enable_x64` is set or not.
Two kinds of results have another dtype: scores and keys that are selected keep theirs, and closed
forms and noise distributions, which are made on the host, are float64.
"""

from cpc.negatives.alias import AliasTable, alias_table, draw, draw_unique
from cpc.negatives.audit import audit, audit_queue, audit_rule, audit_sampler, audit_table
from cpc.negatives.audit_rows import Audit, AuditRow, format_audit
from cpc.negatives.candidates import (
    Bigrams,
    Sampled,
    Sampler,
    bigram_log_q,
    bigrams,
    draw_bigrams,
    fixed_sampler,
    learned_unigram_sampler,
    log_uniform_sampler,
    observe,
    uniform_sampler,
    unigram_sampler,
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
from cpc.negatives.hits import accidental_hits, hit_rate
from cpc.negatives.measured import (
    LagCounts,
    count_same,
    hard_fractions,
    mean_hit_rate,
    min_negatives_for,
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
    RULES,
    batch,
    excluding_sequence,
    one_per_sequence,
    outside_anchor,
    outside_overlap,
    outside_window,
    own_sequence,
    same_group,
    within_shards,
)
from cpc.negatives.samplers import sample_uniform, uniform_draws, uniform_subset, with_zero
from cpc.negatives.tables import SAMPLERS
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
    "RULES",
    "SAMPLERS",
    "AliasTable",
    "Audit",
    "AuditRow",
    "Bigrams",
    "LagCounts",
    "Pool",
    "Proposal",
    "Queue",
    "Rule",
    "Sampled",
    "Sampler",
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
    "bigram_log_q",
    "bigrams",
    "bounded_temperature",
    "compare_pool",
    "count_same",
    "draw",
    "draw_bigrams",
    "draw_unique",
    "effective_margin",
    "entropy",
    "exclude_window",
    "excluding_sequence",
    "exclusion_window",
    "expected_count",
    "fixed_sampler",
    "format_audit",
    "hard_fractions",
    "hardest",
    "hit_rate",
    "hold_entropy",
    "is_positive",
    "learned_unigram_sampler",
    "log_uniform",
    "log_uniform_sampler",
    "make_queue",
    "mean_hit_rate",
    "min_negatives",
    "min_negatives_for",
    "min_negatives_without_replacement",
    "mix_keys",
    "mixed",
    "negative_weights",
    "observe",
    "one_per_sequence",
    "outside_anchor",
    "outside_overlap",
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
    "uniform_sampler",
    "uniform_subset",
    "unigram",
    "unigram_sampler",
    "with_zero",
    "within_shards",
]
