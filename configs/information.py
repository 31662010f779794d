"""Config keys of the staircase, tasks and consistency experiments on estimators."""

from configs.defaults import MAX_STEPS, MAX_WIDTH
from configs.keys import Key, with_defaults

ESTIMATORS = (
    "info_nce", "interpolated", "ml_cpc", "tuba", "nwj", "flo", "js", "donsker_varadhan", "mine",
    "club",
)  # fmt: skip
#: Networks and estimators, in all experiments.
ESTIMATION = {
    "seed": Key(0, "seed of all randomness", low=0, below=2**32),
    "batch_size": Key(64, "number of pairs per step", low=2, high=2**14),
    "learning_rate": Key(1e-3, "learning rate of Adam", above=0),
    "critics": Key(("separable",), "networks that score a pair", words=("separable", "joint")),
    "widths": Key(
        (256, 256), "widths of separable critics, baselines and CLUB's model",
        low=1, high=MAX_WIDTH),
    "embedding": Key(
        32, "width of the embeddings in separable critics", low=1, high=MAX_WIDTH),
    "joint_widths": Key((64, 64), "widths of joint critics", low=1, high=MAX_WIDTH),
    "estimators": Key(
        ("info_nce", "nwj", "donsker_varadhan", "js"), "estimators, each with its own networks, "
        "except that SMILE uses the networks trained by js", words=ESTIMATORS),
    "interpolation_weight": Key(
        0.01, "interpolated: weight of InfoNCE, where 1 is InfoNCE and 0 is TUBA", low=0, high=1),
    "smile_clip": Key(5.0, "SMILE: limit at which scores are clipped, in nats", above=0),
}  # fmt: skip

#: Length of a fit to a sample. The step with the best value on held-out pairs is used.
FIT = {
    "num_steps": Key(400, "number of steps per fit", low=1, high=MAX_STEPS),
    "read_every": Key(100, "number of steps between evaluations, a divisor of num_steps", low=1),
}

STAIRCASE = {
    "kind": Key("mi_staircase", "kind of experiment", words=("mi_staircase",)),
    **with_defaults(
        ESTIMATION, learning_rate=2e-3, critics=("separable", "joint"), estimators=ESTIMATORS,
    ),
    "levels": Key((2.0, 4.0, 6.0, 8.0, 10.0), "levels of mutual information in nats", low=0),
    "dim": Key(20, "dimension of x and of y", low=1, high=MAX_WIDTH),
    "maps": Key(
        ("gaussian", "cubic"), "transform of y: none (gaussian) or y^3 (cubic), which keeps the "
        "information", words=("gaussian", "cubic")),
    "steps_per_level": Key(
        300, "number of steps per level, which is 4,000 in the papers", low=1, high=MAX_STEPS),
    "log_every": Key(
        20, "number of steps between records, which must divide steps_per_level", low=1),
    "save_every": Key(300, "number of steps between checkpoints, or 0 for only the last", low=0),
}  # fmt: skip

TASKS = {
    "kind": Key("mi_tasks", "kind of experiment", words=("mi_tasks",)),
    **with_defaults(
        ESTIMATION, batch_size=128, learning_rate=5e-3, critics=("joint",), widths=(16, 8),
        embedding=8, joint_widths=(16, 8),
    ),
    **with_defaults(FIT, num_steps=500),
    "tasks": Key((), 'prefixes of task names, such as "student", or () for all forty tasks'),
    "num_samples": Key(
        3000, "number of pairs per task and seed, of which half are held out", low=1, high=10**8),
    "num_seeds": Key(2, "number of seeds, which is 10 in the suite", low=1, high=1000),
    "num_neighbours": Key(10, "number of nearest neighbors in the KSG estimator", low=1),
}  # fmt: skip

CONSISTENCY = {
    "kind": Key("mi_consistency", "kind of experiment", words=("mi_consistency",)),
    **ESTIMATION,
    **FIT,
    "rows": Key((7, 14, 21, 28), "numbers of rows in y, in increasing order", low=1, high=28),
    "processing_rows": Key(3, "number of rows removed from y in its processed copy", low=1),
    "num_images": Key(20000, "maximum number of images in each split", low=1, high=10**8),
}
