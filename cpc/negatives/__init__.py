"""Rules, samplers, noise distributions and closed forms for selecting negatives.

Mismatched shapes and invalid numbers, such as a probability of 2, raise `UserError` with the name
of the argument. Traced values are not checked.

Results are float32 and int32 for all input dtypes, regardless of `jax_enable_x64`. There are two
exceptions: selected scores and keys keep their dtype, and closed forms and noise distributions,
which are computed on the host, are float64.
"""

from cpc.negatives.audit import Audit as Audit
from cpc.negatives.audit import AuditRow as AuditRow
from cpc.negatives.audit import audit as audit
from cpc.negatives.audit import audit_queue as audit_queue
from cpc.negatives.audit import audit_rule as audit_rule
from cpc.negatives.audit import audit_sampler as audit_sampler
from cpc.negatives.audit import audit_table as audit_table
from cpc.negatives.audit import format_audit as format_audit
from cpc.negatives.candidates import Bigrams as Bigrams
from cpc.negatives.candidates import Sampled as Sampled
from cpc.negatives.candidates import Sampler as Sampler
from cpc.negatives.candidates import bigram_log_q as bigram_log_q
from cpc.negatives.candidates import bigrams as bigrams
from cpc.negatives.candidates import draw_bigrams as draw_bigrams
from cpc.negatives.candidates import fixed_sampler as fixed_sampler
from cpc.negatives.candidates import learned_unigram_sampler as learned_unigram_sampler
from cpc.negatives.candidates import log_uniform_sampler as log_uniform_sampler
from cpc.negatives.candidates import observe as observe
from cpc.negatives.candidates import uniform_sampler as uniform_sampler
from cpc.negatives.candidates import unigram_sampler as unigram_sampler
from cpc.negatives.closed_forms import LagCounts as LagCounts
from cpc.negatives.closed_forms import Pool as Pool
from cpc.negatives.closed_forms import Window as Window
from cpc.negatives.closed_forms import compare_pool as compare_pool
from cpc.negatives.closed_forms import count_same as count_same
from cpc.negatives.closed_forms import effective_margin as effective_margin
from cpc.negatives.closed_forms import exclude_window as exclude_window
from cpc.negatives.closed_forms import exclusion_window as exclusion_window
from cpc.negatives.closed_forms import hard_fractions as hard_fractions
from cpc.negatives.closed_forms import mean_hit_rate as mean_hit_rate
from cpc.negatives.closed_forms import min_negatives as min_negatives
from cpc.negatives.closed_forms import min_negatives_for as min_negatives_for
from cpc.negatives.closed_forms import (
    min_negatives_without_replacement as min_negatives_without_replacement,
)
from cpc.negatives.noise import AliasTable as AliasTable
from cpc.negatives.noise import accidental_hits as accidental_hits
from cpc.negatives.noise import alias_table as alias_table
from cpc.negatives.noise import draw as draw
from cpc.negatives.noise import draw_unique as draw_unique
from cpc.negatives.noise import expected_count as expected_count
from cpc.negatives.noise import hit_rate as hit_rate
from cpc.negatives.noise import log_uniform as log_uniform
from cpc.negatives.noise import probabilities as probabilities
from cpc.negatives.noise import solve_alpha as solve_alpha
from cpc.negatives.noise import uniform as uniform
from cpc.negatives.noise import unigram as unigram
from cpc.negatives.queue import Queue as Queue
from cpc.negatives.queue import ages as ages
from cpc.negatives.queue import make_queue as make_queue
from cpc.negatives.queue import push as push
from cpc.negatives.rules import RULES as RULES
from cpc.negatives.rules import batch as batch
from cpc.negatives.rules import excluding_sequence as excluding_sequence
from cpc.negatives.rules import one_per_sequence as one_per_sequence
from cpc.negatives.rules import outside_anchor as outside_anchor
from cpc.negatives.rules import outside_overlap as outside_overlap
from cpc.negatives.rules import outside_window as outside_window
from cpc.negatives.rules import own_sequence as own_sequence
from cpc.negatives.rules import same_group as same_group
from cpc.negatives.rules import within_shards as within_shards
from cpc.negatives.samplers import SAMPLERS as SAMPLERS
from cpc.negatives.samplers import Proposal as Proposal
from cpc.negatives.samplers import hardest as hardest
from cpc.negatives.samplers import mix_keys as mix_keys
from cpc.negatives.samplers import mixed as mixed
from cpc.negatives.samplers import percentile_ring as percentile_ring
from cpc.negatives.samplers import propose as propose
from cpc.negatives.samplers import proposed as proposed
from cpc.negatives.samplers import sample_uniform as sample_uniform
from cpc.negatives.samplers import semi_hard as semi_hard
from cpc.negatives.samplers import uniform_draws as uniform_draws
from cpc.negatives.samplers import uniform_subset as uniform_subset
from cpc.negatives.samplers import with_zero as with_zero
from cpc.negatives.temperature import bounded_temperature as bounded_temperature
from cpc.negatives.temperature import entropy as entropy
from cpc.negatives.temperature import hold_entropy as hold_entropy
from cpc.negatives.temperature import negative_weights as negative_weights
from cpc.negatives.temperature import raw_temperature as raw_temperature
from cpc.negatives.temperature import solve_temperature as solve_temperature
from cpc.types import Rule as Rule
from cpc.types import is_positive as is_positive
