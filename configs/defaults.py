"""Keys that all contrastive kinds share: run, loss, negatives and optimizer."""

from configs.keys import Key
from cpc.losses import LOSSES
from cpc.negatives import RULES, SAMPLERS

#: Steps are counted in 32 bits.
MAX_STEPS = 10**9
#: Widths are sizes of matrices; layers are compiled one by one.
MAX_WIDTH, MAX_LAYERS, MAX_OFFSETS = 2**16, 256, 4096

#: Shared by all kinds.
LOGGER = Key(
    "",
    "service that also receives the records, if its package is installed; empty: none",
    words=("", "wandb", "trackio"),
)

RUN = {
    "seed": Key(0, "seed of all randomness", low=0, below=2**32),
    "num_steps": Key(1000, "number of parameter updates", low=1, high=MAX_STEPS),
    "steps_per_launch": Key(
        1, "steps the device takes without returning to the host", low=1, high=1024),
    "log_every": Key(50, "steps between training records", low=1),
    "eval_every": Key(250, "steps between evaluations on held-out data; 0: none", low=0),
    "save_every": Key(250, "steps between checkpoints; 0: only the last", low=0),
    "logger": LOGGER,
}  # fmt: skip

LOSS = {
    "name": Key(
        "info_nce", "loss of an anchor; debiased, hard_weighted, sup_con and the triplet losses "
        "need cosine=True; sup_con is supervised: candidates of the same speaker or class are "
        "also positives", words=tuple(LOSSES)),
    "cosine": Key(False, "whether scores are cosines"),
    "bias": Key(0.0, "added to the scores; matters to nce, sigmoid and other logistic losses"),
    "learn_bias": Key(False, "whether the bias is trained"),
    "prior": Key(
        0.1, "debiased, hard_weighted: probability that a negative has the positive's class",
        low=0, below=1),
    "concentration": Key(
        1.0, "hard_weighted: how strongly negatives with high scores are favored", low=0),
    "margin": Key(
        1.0, "triplet losses: by how much the positive's score, divided by the temperature, "
        "should exceed a negative's", low=0),
}  # fmt: skip

NEGATIVES = {
    "rule": Key("batch", "which latents of the batch are negatives", words=tuple(RULES)),
    "window": Key(
        0, "latents around the positive, in its own sequence, that are excluded as negatives",
        low=0, high=2**30),
    "shards": Key(
        1, "parts of the batch that do not see each other's negatives; the paper: its 8 devices",
        low=1),
    "choose": Key(
        "uniform", "which of the rule's negatives are used: drawn at random, chosen by score, or "
        "all and an additional score of 0", words=tuple(SAMPLERS)),
    "num_sampled": Key(
        0, "negatives per anchor for uniform, hardest, mixed and proposed; 0: all",
        low=0, high=2**30),
    "margin": Key(
        1.0, "semi_hard: use negatives that score at most this much below the positive, both "
        "divided by the temperature", low=0),
    "ring_low": Key(
        50.0, "ring: lowest percentile of the scores to take negatives from", low=0, high=100),
    "ring_high": Key(
        95.0, "ring: highest percentile of the scores to take negatives from", low=0, high=100),
    "proposal": Key(
        "stopped", "proposed: whether the gradient flows through the proposal",
        words=("stopped", "through")),
    "queue": Key(0, "latents of earlier batches kept as additional candidates", low=0, high=2**30),
    "momentum": Key(
        0.0, "decay of a slow copy of the encoder that computes the keys; 0: none", low=0, below=1),
    "temperature": Key(1.0, "divisor of the scores, or its initial value if it changes", above=0),
    "temperature_rule": Key(
        "fixed", "how the temperature is set; entropy: so that the negatives' weights keep "
        "target_entropy", words=("fixed", "learned", "entropy")),
    "target_entropy": Key(
        0.8, "entropy to keep, as a fraction of the log of the number of negatives", low=0, below=1,
    ),
    "temperature_low": Key(0.01, "lower limit of a temperature that changes", above=0),
    "temperature_high": Key(100.0, "upper limit of a temperature that changes", above=0),
}  # fmt: skip

OPTIM = {
    "name": Key(
        "adam", "optimizer; muon orthogonalizes the updates of weights and leaves biases and "
        "embeddings to Adam; schedule_free, for schedule=constant, averages Adam's steps and "
        "evaluates the average", words=("adam", "lion", "muon", "rmsprop", "schedule_free")),
    "learning_rate": Key(2e-3, "learning rate after the warm-up", above=0),
    "warmup_steps": Key(100, "warm-up: step n of them has n / warmup_steps of the rate", low=0),
    "schedule": Key("cosine", "schedule of the learning rate", words=("cosine", "constant")),
    "clip_norm": Key(0.0, "maximum gradient norm; 0: unlimited", low=0),
    "weight_decay": Key(0.0, "decoupled weight decay; 0: none", low=0),
    "ema_decay": Key(
        0.0, "decay of the parameters' running average, which is then evaluated; 0: none",
        low=0, below=1),
    "accumulate": Key(
        1, "parts into which a batch is split to save memory, one in memory at a time", low=1),
}  # fmt: skip

#: Keys of the data section that all sources share.
INPUT = {
    "batch_size": Key(8, "sequences in the global batch, over all devices", low=1, high=2**17),
    "num_threads": Key(2, "threads that read and prepare batches ahead", low=0, high=256),
    "max_skipped_fraction": Key(0.1, "fraction of files that may be unreadable", low=0, high=1),
}  # fmt: skip

#: Keys of the model section that all modalities share.
PRECISION = {
    "remat": Key(False, "recompute the encoder for the gradient, which saves memory"),
    "dtype": Key(
        "float32", "precision of the computation; parameters and loss are always float32",
        words=("float32", "bfloat16")),
}  # fmt: skip

#: Schedule of the probes.
EVERY = Key(0, "steps between probes, at evaluations; 0: only once, at the end", low=0)
#: Keys of frame-wise probes.
PROBE = {
    "hidden_width": Key(
        0, "width of a second probe with one hidden layer; 0: only the linear probe",
        low=0, high=MAX_WIDTH),
    "num_epochs": Key(
        3, "hidden_width: epochs of Adam over all training frames; the linear probe is fitted to "
        "convergence", low=1, high=10**6),
    "every": EVERY,
}  # fmt: skip
