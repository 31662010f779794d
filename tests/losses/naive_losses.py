"""Naive losses in float64 NumPy, one anchor and one entry at a time.

Each takes the positive score of an anchor and a list of its unmasked negatives.
"""

import math
from decimal import Decimal

import numpy as np


def softplus(x):
    return float(np.logaddexp(0.0, x))


def info_nce(positive, negatives, temperature=1.0):
    scores = [s / temperature for s in (positive, *negatives)]
    return float(np.logaddexp.reduce(scores)) - scores[0]


def ranking_nce(positive, negatives, log_positive, log_negatives):
    return info_nce(positive - log_positive, [s - log_negatives for s in negatives])


def nce(positive, negatives, log_positive, log_negatives, log_normalizer):
    constant = log_normalizer + math.log(len(negatives))
    shifted = [s - constant for s in negatives]
    return sampled_logistic(positive - constant, shifted, log_positive, log_negatives)


def sampled_logistic(positive, negatives, log_positive=0.0, log_negatives=0.0):
    loss = softplus(-(positive - log_positive))
    for s in negatives:
        loss += softplus(s - log_negatives)
    return loss


def decoupled(positive, negatives, temperature, positive_weight):
    total = float(np.logaddexp.reduce([s / temperature for s in negatives]))
    return total - positive_weight * positive / temperature


def hard_weighted(positive, negatives, prior, concentration, temperature, own_class=None):
    """Use decimals instead of logarithms, which do not overflow."""

    def exp(x):
        return Decimal(x).exp()

    u = [exp(s / temperature) for s in negatives]
    tilt = [exp(concentration * s / temperature) for s in negatives]
    mean = sum(w * x for w, x in zip(tilt, u, strict=True)) / sum(tilt)
    own = exp(positive / temperature)
    taken = [exp(s / temperature) for s in own_class or [positive]]
    corrected = (mean - Decimal(prior) * sum(taken) / len(taken)) / (1 - Decimal(prior))
    noise = max(corrected, exp(-1 / temperature))
    return float((1 + len(u) * noise / own).ln())


def sigmoid(positive, negatives, temperature, bias):
    return sampled_logistic(
        positive / temperature + bias, [s / temperature + bias for s in negatives]
    )


def triplet(positive, negatives, margin, mining):
    own, others = -positive, [-s for s in negatives]  # distances
    costs = [max(0.0, own - other + margin) for other in others]
    if mining == "all":
        return sum(costs) / len(costs)
    if mining == "hard":
        return max(costs)
    inside = [other for other in others if own < other < own + margin]
    chosen = min(inside) if inside else max(others)
    return max(0.0, own - chosen + margin)
