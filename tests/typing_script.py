"""Public functions with types known to a strict type checker."""
# pyright: strict

import jax

import cpc
from cpc import estimators, losses, negatives
from cpc.models import load
from cpc.results import read_run
from cpc.types import Rule


def mean_loss(predictions: jax.Array, z: jax.Array, others: jax.Array) -> jax.Array:
    """Return InfoNCE in nats, where row i of z is the positive of row i."""
    scores = predictions @ z.T
    positive = (predictions * z).sum(axis=1)
    return losses.info_nce(positive, scores, others, temperature=0.1).mean()


def describe_run(workdir: str, x: jax.Array) -> str:
    """Describe the scores of a run and the shapes of its features."""
    z, c = load(workdir)(x)
    scores = [
        f"{score.task} {score.metric} {score.value:.3f}" for score in read_run(workdir).scores
    ]
    return f"cpc {cpc.__version__}: {z.shape}, {c.shape}; {', '.join(scores)}"


def estimate(scores: jax.Array) -> tuple[float, bool]:
    """Return the information in nats of a score matrix, and whether it is a bound."""
    found = estimators.info_nce(scores)
    return float(found.value), found.is_bound


rule: Rule = negatives.batch & negatives.excluding_sequence
