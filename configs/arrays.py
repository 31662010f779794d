"""Config keys of `cpc information`, for your own arrays."""

from configs.information import ESTIMATION, ESTIMATORS, FIT
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("arrays", "kind of experiment", words=("arrays",)),
    **with_defaults(
        ESTIMATION, batch_size=64, learning_rate=2e-3, critics=("separable", "joint"),
        widths=(32,), embedding=16, joint_widths=(32, 16), estimators=ESTIMATORS,
    ),
    **with_defaults(FIT, num_steps=800, read_every=100),
    "read_size": Key(
        256, "maximum number N of held-out pairs in an evaluation, with ceiling log N", low=8),
    "num_neighbours": Key(10, "number of nearest neighbors in the KSG estimator", low=1),
    "transform": Key(
        "normal_scores", "transform of each column, fitted to the training rows",
        words=("normal_scores", "standardize")),
    "shuffles": Key(2, "number of shuffles of y in each of the four rotations", low=2, high=1000),
    "max_rows": Key(
        20_000, "maximum number of rows, which are drawn from longer arrays", low=200, high=10**8),
}  # fmt: skip


def get_config():
    """Return defaults for a CPU."""
    return make_config(KEYS)
