"""The keys of every modality: run, loss, negatives and optimizer."""

from configs.keys import Key

#: Steps are counted in 32 bits.
MOST_STEPS = 10**9
#: Of what a matrix has rows or columns of, of layers that are compiled one by one, and of offsets.
WIDEST, MOST_LAYERS, MOST_OFFSETS = 2**16, 256, 4096

#: Of every training run.
LOGGER = Key(
    "",
    "service that gets the records too, if its package is installed; empty: none",
    words=("", "wandb", "trackio"),
)

RUN = {
    "seed": Key(0, "of all randomness", low=0, below=2**32),
    "num_steps": Key(1000, "updates of the parameters", low=1, high=MOST_STEPS),
    "steps_per_launch": Key(1, "steps that the device does without the host", low=1, high=1024),
    "log_every": Key(50, "steps between records of the training", low=1),
    "eval_every": Key(250, "steps between evaluations on held-out data; 0: none", low=0),
    "save_every": Key(250, "steps between checkpoints; 0: the last alone", low=0),
    "logger": LOGGER,
}

LOSS = {
    # Its words are checked by `experiments.objective`, which says of an old name what it means.
    "name": Key(
        "info_nce",
        "of an anchor: info_nce, nce, sigmoid, decoupled; of cosines: debiased, hard_weighted, "
        "triplet_hard, triplet_semi_hard or triplet_all",
    ),
    "cosine": Key(False, "whether scores are cosines"),
    "bias": Key(0.0, "added to the scores: matters to nce, sigmoid and other logistic losses"),
    "learn_bias": Key(False, "whether the bias is trained"),
    "prior": Key(
        0.1,
        "debiased, hard_weighted: chance that a negative is of the positive's class",
        low=0,
        below=1,
    ),
    "concentration": Key(1.0, "hard_weighted: tilt towards negatives of high score", low=0),
    "margin": Key(1.0, "triplet: by which the positive's score shall exceed", low=0),
}  # fmt: skip

NEGATIVES = {
    "rule": Key(
        "batch",
        "which latents of the batch are negatives",
        words=("batch", "excluding_sequence", "own_sequence", "same_group", "one_per_sequence"),
    ),
    "window": Key(
        0, "latents around the positive, of the own sequence, to leave out", low=0, high=2**30
    ),
    "shards": Key(
        1, "parts of the batch that see no negatives of each other; the paper: its 8 devices", low=1
    ),
    "choose": Key(
        "uniform",
        "which of the rule's negatives are used: at random, by their scores, or all and a 0 beside",
        words=("uniform", "hardest", "semi_hard", "ring", "mixed", "proposed", "with_zero"),
    ),
    "num_sampled": Key(
        0, "negatives an anchor, under uniform, hardest, mixed, proposed; 0: all", low=0, high=2**30
    ),
    "margin": Key(1.0, "semi_hard: negatives within it below the positive", low=0),
    "ring_low": Key(
        50.0, "ring: percentile of the scores from which negatives are taken", low=0, high=100
    ),
    "ring_high": Key(95.0, "ring: percentile up to which they are taken", low=0, high=100),
    "proposal": Key(
        "stopped",
        "proposed: whether the gradient passes the proposal",
        words=("stopped", "through"),
    ),
    "queue": Key(0, "latents of earlier batches kept as further candidates", low=0, high=2**30),
    "momentum": Key(0.0, "decay of a slow encoder that makes the keys; 0: none", low=0, below=1),
    "temperature": Key(1.0, "by which scores are divided, or where it starts", above=0),
    "temperature_rule": Key(
        "fixed",
        "entropy: held where the entropy of the negatives' weights is target_entropy",
        words=("fixed", "learned", "entropy"),
    ),
    "target_entropy": Key(
        0.8, "as a fraction of the logarithm of the number of negatives", low=0, below=1
    ),
    "temperature_low": Key(0.01, "least that a learned or held temperature can be", above=0),
    "temperature_high": Key(100.0, "most that it can be", above=0),
}

OPTIM = {
    "name": Key(
        "adam",
        "of the optimizer; muon orthogonalizes matrices and leaves the rest to Adam",
        words=("adam", "lion", "muon", "rmsprop"),
    ),
    "learning_rate": Key(2e-3, "after the warm-up", above=0),
    "warmup_steps": Key(100, "steps over which the learning rate rises from 0", low=0),
    "schedule": Key("cosine", "of the learning rate", words=("cosine", "constant")),
    "clip_norm": Key(0.0, "largest norm of a gradient; 0: any", low=0),
    "weight_decay": Key(0.0, "decoupled; 0: none", low=0),
    "ema_decay": Key(
        0.0, "of the running average of parameters that is evaluated; 0: none", low=0, below=1
    ),
    "accumulate": Key(1, "parts of a batch whose activations are in memory one at a time", low=1),
}

#: Keys of the data section that all sources share.
INPUT = {
    "batch_size": Key(
        8, "sequences of the global batch, on however many devices", low=1, high=2**17
    ),
    "num_threads": Key(2, "that read and prepare batches ahead", low=0, high=256),
    "max_skipped_fraction": Key(0.1, "of files that may be unreadable", low=0, high=1),
}

#: Keys of the model section that all modalities share.
PRECISION = {
    "remat": Key(False, "compute the encoder again for the gradient: less memory"),
    "dtype": Key(
        "float32",
        "of the computation; parameters and loss are always float32",
        words=("float32", "bfloat16"),
    ),
}

#: When probes are fitted.
EVERY = Key(0, "steps between probes, at evaluations; 0: once, at the end", low=0)
