"""The loss of a batch that many devices share: the same numbers as on one device.

Impossible arguments raise `UserError`, which names them and a way out.
"""

from cpc.parallel.reducer import gathered_losses as gathered_losses
from cpc.parallel.reducer import make_reducer as make_reducer
from cpc.parallel.reducer import ring_losses as ring_losses
from cpc.parallel.reducer import takes_ring as takes_ring
