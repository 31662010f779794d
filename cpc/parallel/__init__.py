"""The loss of a batch that many devices share: the same numbers as on one device."""

from cpc.parallel.reducer import gathered_losses, make_reducer, takes_ring
from cpc.parallel.ring import ring_losses

__all__ = ["gathered_losses", "make_reducer", "ring_losses", "takes_ring"]
