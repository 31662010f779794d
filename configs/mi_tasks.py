"""The forty tasks of "Beyond Normal" (Czyz et al. 2023): neural estimates, KSG and CCA.

    cpc train --config mi_tasks --workdir runs/tasks

This takes 10 minutes on 2 slow, shared CPU cores. Mean distance from the truth over the tasks:
InfoNCE 0.23 nats, NWJ 0.23, Donsker-Varadhan 0.23, SMILE 0.28, JS 0.28, KSG 0.28 (within 0.1 in one
dimension, 0.9 too low on two pairs among 25), CCA 0.17 (it finds nothing on asinh Student).

The suite's protocol, for a GPU or a patient CPU:

    ... --config.num_samples=5000 --config.num_seeds=10 --config.num_steps=10000 \
        --config.batch_size=256 --config.read_every=250
"""

from configs.information import TASKS
from configs.keys import make_config


def get_config():
    """Return defaults for a CPU."""
    return make_config(TASKS)
