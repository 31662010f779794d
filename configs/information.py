"""Every key of the experiments on estimators of information: staircase, tasks, consistency."""

from configs.defaults import MAX_STEPS, MAX_WIDTH
from configs.keys import Key, with_defaults

ESTIMATORS = (
    "info_nce", "interpolated", "ml_cpc", "tuba", "nwj", "flo", "js", "donsker_varadhan", "mine",
    "club",
)  # fmt: skip
#: What is trained, in each of them.
ESTIMATION = {
    "seed": Key(0, "of all randomness", low=0, below=2**32),
    "batch_size": Key(64, "pairs a step", low=2, high=2**14),
    "learning_rate": Key(1e-3, "of Adam", above=0),
    "critics": Key(("separable",), "the networks that score a pair", words=("separable", "joint")),
    "widths": Key(
        (256, 256), "of separable critics, baselines and CLUB's model", low=1, high=MAX_WIDTH),
    "embedding": Key(32, "width in which separable critics meet", low=1, high=MAX_WIDTH),
    "joint_widths": Key((64, 64), "of joint critics", low=1, high=MAX_WIDTH),
    "estimators": Key(
        ("info_nce", "nwj", "donsker_varadhan", "js"), "each trains networks of its own; js also "
        "reads SMILE", words=ESTIMATORS),
    "interpolation_weight": Key(0.01, "1: InfoNCE, 0: TUBA", low=0, high=1),
    "smile_clip": Key(5.0, "nats", above=0),
}  # fmt: skip

#: Until held-out pairs are read best, in those that fit a sample.
FIT = {
    "num_steps": Key(400, "of each fit", low=1, high=MAX_STEPS),
    "read_every": Key(100, "steps between readings, a divisor of num_steps", low=1),
}

STAIRCASE = {
    "kind": Key("mi_staircase", "of experiment", words=("mi_staircase",)),
    **with_defaults(
        ESTIMATION, learning_rate=2e-3, critics=("separable", "joint"), estimators=ESTIMATORS,
    ),
    "levels": Key((2.0, 4.0, 6.0, 8.0, 10.0), "nats", low=0),
    "dim": Key(20, "of x and of y", low=1, high=MAX_WIDTH),
    "maps": Key(
        ("gaussian", "cubic"), "of y; cubic: y^3, with the same information",
        words=("gaussian", "cubic")),
    "steps_per_level": Key(300, "the papers: 4,000", low=1, high=MAX_STEPS),
    "log_every": Key(20, "steps, a divisor of steps_per_level", low=1),
    "save_every": Key(300, "steps between checkpoints; 0: the last alone", low=0),
}  # fmt: skip

TASKS = {
    "kind": Key("mi_tasks", "of experiment", words=("mi_tasks",)),
    **with_defaults(
        ESTIMATION, batch_size=128, learning_rate=5e-3, critics=("joint",), widths=(16, 8),
        embedding=8, joint_widths=(16, 8),
    ),
    **with_defaults(FIT, num_steps=500),
    "tasks": Key((), 'beginnings of names, such as "student"; none: all forty'),
    "num_samples": Key(
        3000, "pairs a task and seed: half to train, half held out", low=1, high=10**8),
    "num_seeds": Key(2, "the suite: 10", low=1, high=1000),
    "num_neighbours": Key(10, "of KSG", low=1),
}  # fmt: skip

CONSISTENCY = {
    "kind": Key("mi_consistency", "of experiment", words=("mi_consistency",)),
    **ESTIMATION,
    **FIT,
    "rows": Key((7, 14, 21, 28), "that y keeps, rising", low=1, high=28),
    "processing_rows": Key(3, "fewer rows of the processed copy", low=1),
    "num_images": Key(20000, "of each split, at most", low=1, high=10**8),
}
