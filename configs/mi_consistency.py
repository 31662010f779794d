"""Three laws of information on Fashion-MNIST (Song and Ermon 2020, section 5.2).

    python -m experiments.mutual_information --config configs/mi_consistency.py --workdir runs/laws

x is a picture, y its top rows: information must grow with the rows; a processed copy of y beside
it must add nothing (ratio 1); two independent pictures must hold twice as much (ratio 2).

Measured: 2 minutes on 2 CPU cores beside other jobs. InfoNCE keeps two laws (0.87 to 1.00,
0.97 to 1.00) and, at its ceiling, breaks the third (1.03 to 1.13 for 2). NWJ wavers by a third, JS
diverges, SMILE reads 1.1 to 1.8 for 2.
"""

from typing import Any

from ml_collections import ConfigDict


def get_config() -> Any:
    """Every key of the test; a form that fits a CPU."""
    c: Any = ConfigDict()
    c.protocol = "consistency"
    c.seed = 0
    c.rows = (7, 14, 21, 28)  # that y keeps
    c.processing_rows = 3  # fewer rows of the processed copy
    c.num_pictures = 20000  # of each split, at most
    c.batch_size = 64
    c.num_steps = 400
    c.read_every = 100
    c.learning_rate = 1e-3

    c.critics = ("separable",)
    c.widths = (256, 256)
    c.embedding = 32
    c.joint_widths = (64, 64)
    c.estimators = ("info_nce", "nwj", "donsker_varadhan", "js")
    c.interpolation_weight = 0.01
    c.smile_clip = 5.0
    return c
