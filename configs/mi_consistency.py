"""Three laws of information on Fashion-MNIST (Song and Ermon 2020, section 5.2).

    cpc train --config mi_consistency --workdir runs/laws

x is an image and y contains its top rows. Information must grow with the rows, a processed copy of
y must add no information (ratio 1), and two independent images must have twice as much (ratio 2).

This takes 3 minutes on 2 slow, shared CPU cores. InfoNCE satisfies two laws (0.87 to 1.00, 0.97 to
1.00) and, at its ceiling, breaks the third (1.01 to 1.12 instead of 2). NWJ fluctuates by a third,
JS diverges, and SMILE estimates 1.1 to 1.7 instead of 2.
"""

from configs.information import CONSISTENCY
from configs.keys import make_config


def get_config():
    """Return defaults for a CPU."""
    return make_config(CONSISTENCY)
