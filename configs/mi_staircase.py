"""The staircase of Poole et al. (2019) and Song and Ermon (2020): 2, 4, 6, 8, 10 nats in one run.

    cpc train --config mi_staircase --workdir runs/stairs

Trains ten estimators with two critics, on y and on y^3, in one compiled program. This takes 6
minutes on 2 shared CPU cores, measured in two launches. At 10 nats with the joint critic, InfoNCE
estimates 4.10 (just below its ceiling of 4.16), ML-CPC 7.0, SMILE 10.1 and Donsker-Varadhan 11.2
(above the truth), and NWJ, TUBA, FLO and MINE break down. With y^3, all estimates are low: 3.6 by
InfoNCE and 5.4 by SMILE.

The papers' protocol, for a GPU or a patient CPU:

    ... --config.steps_per_level=4000 --config.learning_rate=5e-4 --config.joint_widths="(256, 256)"
"""

from configs.information import STAIRCASE
from configs.keys import make_config


def get_config():
    """Return defaults for a CPU."""
    return make_config(STAIRCASE)
