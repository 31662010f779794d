"""Which samplers a config may name."""

from collections.abc import Callable
from typing import NamedTuple

from cpc.negatives.mining import hardest, mixed, percentile_ring, semi_hard
from cpc.negatives.proposal import proposed
from cpc.negatives.samplers import uniform_subset, with_zero
from cpc.types import NegativeSampler


class SamplerEntry(NamedTuple):
    """A sampler that configs may name."""

    make: Callable[..., NegativeSampler]
    options: tuple[str, ...]
    """Options of a config's `negatives` that are the arguments of `make`, in order."""


#: Samplers by the word that configs have for them.
SAMPLERS = {
    "uniform": SamplerEntry(uniform_subset, ("num_sampled",)),
    "hardest": SamplerEntry(hardest, ("num_sampled",)),
    "semi_hard": SamplerEntry(semi_hard, ("margin",)),
    "ring": SamplerEntry(percentile_ring, ("ring_low", "ring_high")),
    "mixed": SamplerEntry(mixed, ("num_sampled", "num_sampled")),
    "proposed": SamplerEntry(proposed, ("num_sampled", "proposal")),
    "with_zero": SamplerEntry(with_zero, ()),
}
