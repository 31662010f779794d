"""The loss of a batch that is sharded over devices, equal to the loss on one device.

Invalid arguments raise `UserError` with the name of the argument and a fix.
"""

from cpc.parallel.reducer import gathered_losses as gathered_losses
from cpc.parallel.reducer import make_reducer as make_reducer
from cpc.parallel.reducer import ring_losses as ring_losses
from cpc.parallel.reducer import takes_ring as takes_ring
