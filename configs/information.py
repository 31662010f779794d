"""Config keys of the experiments on estimators: staircase, tasks, consistency."""

from configs.defaults import MAX_STEPS, MAX_WIDTH
from configs.keys import Key, with_defaults

ESTIMATORS = (
    "info_nce", "interpolated", "ml_cpc", "tuba", "nwj", "flo", "js", "donsker_varadhan", "mine",
    "club",
)  # fmt: skip
#: Networks and estimators, in all experiments.
ESTIMATION = {
    "seed": Key(0, "seed of all randomness", low=0, below=2**32),
    "batch_size": Key(64, "pairs per step", low=2, high=2**14),
    "learning_rate": Key(1e-3, "learning rate of Adam", above=0),
    "critics": Key(("separable",), "networks that score a pair", words=("separable", "joint")),
    "widths": Key(
        (256, 256), "widths of separable critics, baselines and CLUB's model",
        low=1, high=MAX_WIDTH),
    "embedding": Key(
        32, "width of the embeddings that separable critics multiply", low=1, high=MAX_WIDTH),
    "joint_widths": Key((64, 64), "widths of joint critics", low=1, high=MAX_WIDTH),
    "estimators": Key(
        ("info_nce", "nwj", "donsker_varadhan", "js"), "estimators, each with its own networks; "
        "SMILE uses those trained by js", words=ESTIMATORS),
    "interpolation_weight": Key(
        0.01, "interpolated: weight of InfoNCE; 1: InfoNCE, 0: TUBA", low=0, high=1),
    "smile_clip": Key(5.0, "SMILE: limit of the scores in nats", above=0),
}  # fmt: skip

#: Length of a fit to a sample, whose best step on held-out pairs is used.
FIT = {
    "num_steps": Key(400, "steps of each fit", low=1, high=MAX_STEPS),
    "read_every": Key(100, "steps between evaluations, a divisor of num_steps", low=1),
}

STAIRCASE = {
    "kind": Key("mi_staircase", "kind of experiment", words=("mi_staircase",)),
    **with_defaults(
        ESTIMATION, learning_rate=2e-3, critics=("separable", "joint"), estimators=ESTIMATORS,
    ),
    "levels": Key((2.0, 4.0, 6.0, 8.0, 10.0), "levels of information in nats", low=0),
    "dim": Key(20, "dimension of x and of y", low=1, high=MAX_WIDTH),
    "maps": Key(
        ("gaussian", "cubic"), "form of y; cubic: y^3, which has the same information",
        words=("gaussian", "cubic")),
    "steps_per_level": Key(300, "steps at each level; the papers: 4,000", low=1, high=MAX_STEPS),
    "log_every": Key(20, "steps between records, a divisor of steps_per_level", low=1),
    "save_every": Key(300, "steps between checkpoints; 0: only the last", low=0),
}  # fmt: skip

TASKS = {
    "kind": Key("mi_tasks", "kind of experiment", words=("mi_tasks",)),
    **with_defaults(
        ESTIMATION, batch_size=128, learning_rate=5e-3, critics=("joint",), widths=(16, 8),
        embedding=8, joint_widths=(16, 8),
    ),
    **with_defaults(FIT, num_steps=500),
    "tasks": Key((), 'prefixes of task names, such as "student"; (): all forty'),
    "num_samples": Key(
        3000, "pairs per task and seed, half of them held out", low=1, high=10**8),
    "num_seeds": Key(2, "number of seeds; the suite: 10", low=1, high=1000),
    "num_neighbours": Key(10, "neighbors of KSG", low=1),
}  # fmt: skip

CONSISTENCY = {
    "kind": Key("mi_consistency", "kind of experiment", words=("mi_consistency",)),
    **ESTIMATION,
    **FIT,
    "rows": Key((7, 14, 21, 28), "numbers of rows in y, increasing", low=1, high=28),
    "processing_rows": Key(3, "number of rows that the processed copy of y lacks", low=1),
    "num_images": Key(20000, "maximum number of images in each split", low=1, high=10**8),
}
