"""Every key of `cpc information`, for arrays of your own."""

from configs.information import ESTIMATION, ESTIMATORS, FIT
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("arrays", "of experiment", words=("arrays",)),
    **with_defaults(
        ESTIMATION, batch_size=64, learning_rate=2e-3, critics=("separable", "joint"),
        widths=(32,), embedding=16, joint_widths=(32, 16), estimators=ESTIMATORS,
    ),
    **with_defaults(FIT, num_steps=800, read_every=100),
    "read_size": Key(256, "held-out pairs in a reading, at most: the ceiling is its log", low=8),
    "num_neighbours": Key(10, "of KSG", low=1),
    "transform": Key(
        "normal_scores", "of each column, as the rows that train have it",
        words=("normal_scores", "standardize")),
    "shuffles": Key(2, "of y, in each of the four rotations", low=2, high=1000),
    "max_rows": Key(20_000, "drawn at random if there are more", low=200, high=10**8),
}  # fmt: skip


def get_config():
    """A form that fits a CPU."""
    return make_config(KEYS)
