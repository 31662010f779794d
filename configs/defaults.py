"""What audio and image configs share: the loss, the negatives and the optimizer."""

from typing import Any

from ml_collections import ConfigDict


def loss() -> Any:
    """The loss of an anchor, from its positive's and its negatives' scores."""
    c: Any = ConfigDict()
    # info_nce, ranking_nce, nce, negative_sampling, sampled_softmax, sampled_logistic, nt_xent,
    # sup_con, decoupled, debiased, hard_weighted, sigmoid, triplet_hard, triplet_semi_hard or
    # triplet_all
    c.name = "info_nce"
    c.cosine = False  # True: scores are cosines (nt_xent, debiased, triplet presume it)
    c.bias = 0.0  # added to the scores: matters to nce, sigmoid and other logistic losses
    c.learn_bias = False
    c.prior = 0.1  # debiased, hard_weighted: chance that a negative is of the positive's class
    c.concentration = 1.0  # hard_weighted: tilt towards negatives of high score
    c.margin = 1.0  # triplet
    return c


def negatives() -> Any:
    """Who is contrasted with whom, and how sharply."""
    c: Any = ConfigDict()
    # batch, excluding_sequence, own_sequence, same_group or one_per_sequence
    c.rule = "batch"
    c.window = 0  # latents around the positive, of the own sequence, to leave out
    c.groups = 1  # the paper's per-device negatives: 8 devices are 8 groups
    c.choose = "uniform"  # or, by score: hardest, semi_hard, ring, mixed or proposed
    c.num_sampled = 0  # negatives an anchor (uniform, hardest, mixed, proposed); 0: all
    c.margin = 1.0  # semi_hard: negatives within it below the positive
    c.ring_low = 50.0  # ring: percentiles of the scores between which negatives lie
    c.ring_high = 95.0
    c.proposal = "stopped"  # proposed: or through, the gradient passes the proposal
    c.queue = 0  # latents of earlier batches kept as further candidates
    c.momentum = 0.0  # decay of a slow encoder that makes the keys; 0: none
    c.temperature = 1.0  # or where it starts
    c.temperature_rule = "fixed"  # learned, or entropy: held where the weights'
    c.target_entropy = 0.8  # entropy is this share of log of the number of negatives
    c.temperature_low = 0.01
    c.temperature_high = 100.0
    return c


def optim() -> Any:
    """Adam."""
    c: Any = ConfigDict()
    c.learning_rate = 2e-3
    c.warmup_steps = 100
    c.schedule = "cosine"  # or constant
    c.clip_norm = 0.0  # 0: off
    c.weight_decay = 0.0
    c.ema_decay = 0.0  # 0: off
    c.accumulate = 1  # parts of a batch whose activations are in memory one at a time
    return c
