"""The staircase of Poole et al. (2019) and Song and Ermon (2020): 2, 4, 6, 8, 10 nats, one run.

    python -m experiments.mutual_information --config configs/mi_staircase.py --workdir runs/stairs

Ten estimators, two critics, with y and with y^3: one compiled program. 300 CPU seconds; measured
17 minutes on 2 cores that ten other jobs used too. Found there, at 10 nats: InfoNCE 4.10 below its
ceiling 4.16; SMILE 10.20 with the joint critic; NWJ breaks down above 6 nats; Donsker-Varadhan
passes the truth, 11.3; on y^3 joint critics read more than separable ones, and all read low.

The papers' protocol, for a GPU or a patient CPU:

    ... --config.steps_per_level=4000 --config.learning_rate=5e-4 --config.joint_widths="(256, 256)"
"""

from typing import Any

from ml_collections import ConfigDict


def get_config() -> Any:
    """Every key of the staircase; a form that fits a CPU."""
    c: Any = ConfigDict()
    c.protocol = "staircase"
    c.seed = 0
    c.levels = (2.0, 4.0, 6.0, 8.0, 10.0)  # nats
    c.dim = 20
    c.maps = ("gaussian", "cubic")  # cubic: y^3 for y, with the same information
    c.batch_size = 64
    c.steps_per_level = 300  # the papers: 4,000
    c.learning_rate = 2e-3  # the papers: 5e-4
    c.log_every = 20
    c.save_every = 300

    c.critics = ("separable", "joint")
    c.widths = (256, 256)  # of separable critics, baselines and CLUB's model
    c.embedding = 32  # of separable critics
    c.joint_widths = (64, 64)  # the papers: 256, 256
    c.estimators = (
        "info_nce", "interpolated", "ml_cpc", "tuba", "nwj", "flo", "js", "donsker_varadhan",
        "mine", "club",
    )  # fmt: skip
    c.interpolation_weight = 0.01  # 1: InfoNCE, 0: TUBA
    c.smile_clip = 5.0  # nats
    return c
