"""Keys for run, loss, negatives and optimizer, which all contrastive kinds share."""

from configs.keys import Key
from cpc.losses import LOSSES
from cpc.negatives import RULES, SAMPLERS

#: Maximum number of steps, which are counted in 32 bits.
MAX_STEPS = 10**9
#: Maximum sizes of matrices, and maximum numbers of separately compiled layers and offsets.
MAX_WIDTH, MAX_LAYERS, MAX_OFFSETS = 2**16, 256, 4096

#: Parts of a model.
PARTS = ("encoder", "context", "predictor")

#: Shared by all kinds.
LOGGER = Key(
    "",
    "logging service that also receives the records, or empty for none; needs its package",
    words=("", "wandb", "trackio"),
)

RUN = {
    "seed": Key(0, "seed of all randomness", low=0, below=2**32),
    "num_steps": Key(1000, "number of parameter updates", low=1, high=MAX_STEPS),
    "steps_per_launch": Key(1, "number of steps in one launch of the device", low=1, high=1024),
    "log_every": Key(50, "number of steps between training records", low=1),
    "eval_every": Key(250, "number of steps between evaluations, or 0 for none", low=0),
    "save_every": Key(250, "number of steps between checkpoints, or 0 for only the last", low=0),
    "logger": LOGGER,
}  # fmt: skip

#: Weights to start from. The parts are encoder, context and predictor.
START = {
    "start_from": Key(
        "", "weights to start from: a run, exported folder, repository of the hub or checkpoint of "
        "CPC_audio; empty for random weights", is_path=True),
    "start_from_step": Key("", "step of the run in start_from, or best; empty for the newest"),
    "start_from_parts": Key(
        (), "parts of start_from whose weights must all fit; empty to take each weight that fits",
        words=PARTS),
    "freeze": Key((), "parts whose weights stay fixed", words=PARTS),
}  # fmt: skip

LOSS = {
    "name": Key(
        "info_nce", "loss per anchor; debiased, hard_weighted, sup_con and the triplet losses "
        "need loss.cosine=True; sup_con also uses candidates of the same speaker or class as "
        "positives", words=tuple(LOSSES)),
    "cosine": Key(False, "whether scores are cosines"),
    "bias": Key(0.0, "bias of the scores, for nce, sigmoid and other logistic losses"),
    "learn_bias": Key(False, "whether the bias is trained"),
    "prior": Key(
        0.1, "debiased, hard_weighted: probability that a negative has the positive's class",
        low=0, below=1),
    "concentration": Key(
        1.0, "hard_weighted: strength of the preference for negatives with high scores", low=0),
    "margin": Key(
        1.0, "triplet losses: margin between the scores of positives and negatives, divided by "
        "the temperature", low=0),
}  # fmt: skip

NEGATIVES = {
    "rule": Key("batch", "rule that admits latents of the batch as negatives", words=tuple(RULES)),
    "window": Key(
        0, "number of latents around the positive in its sequence to exclude as negatives",
        low=0, high=2**30),
    "shards": Key(
        1, "number of shards of the batch that do not share negatives, such as the paper's 8 "
        "devices", low=1),
    "choose": Key(
        "uniform", "sampler of admitted negatives, which draws at random, selects by score, or "
        "uses all with an additional score of 0", words=tuple(SAMPLERS)),
    "num_sampled": Key(
        0, "uniform, hardest, mixed, proposed: number of negatives per anchor, or 0 for all",
        low=0, high=2**30),
    "margin": Key(
        1.0, "semi_hard: largest difference between the positive's score and a negative's lower "
        "score, divided by the temperature", low=0),
    "ring_low": Key(
        50.0, "ring: lowest percentile of scores from which to draw negatives", low=0, high=100),
    "ring_high": Key(
        95.0, "ring: highest percentile of scores from which to draw negatives", low=0, high=100),
    "proposal": Key(
        "stopped", "proposed: whether the gradient flows through the proposal",
        words=("stopped", "through")),
    "queue": Key(
        0, "number of additional candidates from earlier batches", low=0, high=2**30),
    "momentum": Key(
        0.0, "decay of a slow encoder that computes the keys, or 0 for none", low=0, below=1),
    "temperature": Key(
        1.0, "temperature that divides the scores, initially if it is not fixed", above=0),
    "temperature_rule": Key(
        "fixed", "rule that sets the temperature: fixed, learned, or adjusted to keep the weights "
        "of negatives at target_entropy (entropy)", words=("fixed", "learned", "entropy")),
    "target_entropy": Key(
        0.8, "entropy to keep, as a fraction of log(number of negatives)", low=0, below=1),
    "temperature_low": Key(0.01, "lower limit of a temperature that is not fixed", above=0),
    "temperature_high": Key(100.0, "upper limit of a temperature that is not fixed", above=0),
}  # fmt: skip

OPTIM = {
    "name": Key(
        "adam", "optimizer; muon orthogonalizes the updates of weights and uses Adam for biases "
        "and embeddings; schedule_free needs schedule=constant and evaluates an average of Adam's "
        "steps", words=("adam", "lion", "muon", "rmsprop", "schedule_free")),
    "learning_rate": Key(2e-3, "learning rate after the warm-up", above=0),
    "warmup_steps": Key(
        100, "number of steps over which the learning rate rises linearly from 0", low=0),
    "schedule": Key("cosine", "learning rate schedule", words=("cosine", "constant")),
    "clip_norm": Key(0.0, "maximum gradient norm, or 0 for no limit", low=0),
    "weight_decay": Key(0.0, "decoupled weight decay, or 0 for none", low=0),
    "ema_decay": Key(
        0.0, "decay of the evaluated average of parameters, or 0 for none", low=0, below=1),
    "accumulate": Key(1, "number of parts of a batch, processed in turn to save memory", low=1),
}  # fmt: skip

#: Keys of the data section that all sources share.
INPUT = {
    "batch_size": Key(8, "number of sequences per batch, over all devices", low=1, high=2**17),
    "num_threads": Key(2, "number of threads that prefetch batches", low=0, high=256),
    "max_skipped_fraction": Key(0.1, "fraction of files that may be unreadable", low=0, high=1),
}  # fmt: skip

#: Keys of the model section that all modalities share.
PRECISION = {
    "remat": Key(False, "whether to recompute the encoder in the backward pass to save memory"),
    "dtype": Key(
        "float32", "dtype of the computation, except for parameters and loss in float32",
        words=("float32", "bfloat16")),
}  # fmt: skip

#: Schedule of the probes.
EVERY = Key(0, "number of steps between probes at evaluations, or 0 for only at the end", low=0)
#: Keys of frame-wise probes.
PROBE = {
    "hidden_width": Key(
        0, "width of a second probe's hidden layer, or 0 for no such probe", low=0, high=MAX_WIDTH),
    "num_epochs": Key(
        3, "number of epochs of the probe with a hidden layer; the linear one converges",
        low=1, high=10**6),
    "every": EVERY,
}  # fmt: skip
