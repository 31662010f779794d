"""The loss of a batch that many devices share: the same numbers as on one device."""

from cpc.parallel.criterion import gathered_losses, make_criterion, takes_ring
from cpc.parallel.ring import ring_losses

__all__ = ["gathered_losses", "make_criterion", "ring_losses", "takes_ring"]
