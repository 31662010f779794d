"""Sampled softmax: what its corrections leave of the full softmax's gradient."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.losses import info_nce, ranking_nce, sampled_softmax
from experiments.studies.nce.enumerate import count_draws
from experiments.studies.nce.findings import Finding, check, finding

DATA, NOISE = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])

#: Convention -> loss(positive, negatives, kept, kept but for hits, log q of both, log K).
CONVENTIONS: dict[str, Callable[..., Any]] = {
    "log q off all, hits kept": lambda s, n, kept, but, qs, qn, log_k: ranking_nce(
        s, n, kept, log_noise_positive=qs, log_noise_negatives=qn
    ),
    "log q off all, hits removed": lambda s, n, kept, but, qs, qn, log_k: sampled_softmax(
        s, n, but, log_q_positive=qs, log_q_negatives=qn
    ),
    "log Kq off negatives, hits kept": lambda s, n, kept, but, qs, qn, log_k: sampled_softmax(
        s, n, kept, log_q_negatives=log_k + qn
    ),
    "log Kq off negatives, hits removed": lambda s, n, kept, but, qs, qn, log_k: sampled_softmax(
        s, n, but, log_q_negatives=log_k + qn
    ),
    "no correction": lambda s, n, kept, but, qs, qn, log_k: info_nce(s, n, kept),
}
EXACT, _, KEPT, REMOVED, NONE = CONVENTIONS


@functools.partial(jax.jit, static_argnames="convention")
def expected_gradient(
    scores: Any, weight: Any, counts: Any, log_q: Any, num: Any, convention: str
) -> Any:
    """Return the gradient of the expected loss on scores (v,).

    Args:
        scores: (v,) of the classes.
        weight: (v, r) probability of each label and sample.
        counts: (r, v) how often each class is in each sample.
        log_q: (v,) of the noise.
        num: of negatives.
        convention: key of `CONVENTIONS`.
    """

    def loss(scores):
        v, r = weight.shape
        label = jnp.repeat(jnp.arange(v), r)
        copies = jnp.tile(counts, (v, 1))
        kept = copies > 0
        negatives = scores + jnp.log(jnp.where(kept, copies, 1))
        but_hits = kept & (label[:, None] != jnp.arange(v))
        losses = CONVENTIONS[convention](
            scores[label], negatives, kept, but_hits, log_q[label], log_q, jnp.log(num)
        )
        return weight.reshape(-1) @ losses

    return jax.grad(loss)(scores)


def softmax_bias(
    data: np.ndarray, noise: np.ndarray, nums: Sequence[int], convention: str
) -> np.ndarray:
    """Return the gradient (k, v) at s = log p, where the full softmax has none, for each K."""
    samples = [count_draws(num, noise) for num in nums]
    most = max(len(probability) for _, probability in samples)
    scores, log_q = (jnp.asarray(np.log(p), jnp.float32) for p in (data, noise))
    gradients = []
    for num, (counts, probability) in zip(nums, samples, strict=True):
        more = (0, most - len(probability))  # of one size, so that one program serves every K
        weight = jnp.asarray(np.outer(data, np.pad(probability, more)), jnp.float32)
        counts = jnp.asarray(np.pad(counts, (more, (0, 0))), jnp.float32)
        gradient = expected_gradient(scores, weight, counts, log_q, float(num), convention)
        gradients.append(np.asarray(gradient, np.float64))
    return np.stack(gradients)


def sampled_softmax_bias(
    counts: Sequence[int], data: np.ndarray = DATA, noise: np.ndarray = NOISE
) -> Finding:
    """Check the bias: none with log q off all candidates, 1 / K with it off the negatives.

    That needs accidental hits removed: kept, they stand beside the positive even in the limit,
    whose gradient is E_y [ (p_y e_y + p) / (1 + p_y) ] - p. Without correction the bias stays:
    InfoNCE learns the ratio p / q, and its gradient at log p goes to p q / sum(p q) - p.
    """
    bias = {name: softmax_bias(data, noise, counts, name) for name in CONVENTIONS}
    largest = {name: np.abs(gradients).max(1) for name, gradients in bias.items()}
    last, before = counts[-1], counts[-2]
    slope = np.log(largest[REMOVED][-1] / largest[REMOVED][-2]) / np.log(last / before)
    limit = np.abs(data - data * noise / (data @ noise)).max()
    twice = np.abs(data * (data / (1 + data) + (data / (1 + data)).sum() - 1)).max()
    # The gradient at 1 / K = 0, on the line through the last two.
    line = {name: (last * g[-1] - before * g[-2]) / (last - before) for name, g in bias.items()}
    far = float((data / noise).max())
    checks = [
        check(f"largest bias of any K, {EXACT}", largest[EXACT].max(), 0, 1e-5, "float32 sums"),
        check(f"slope over K, {REMOVED}", slope, -1, far / before, "the next order, max(p/q) / K"),
        *(
            check(f"bias on a line to 1/K = 0, {name}", np.abs(line[name]).max(), expected,
                (far / last) ** 2, "the next order, (max(p/q) / K)^2")
            for name, expected in ((KEPT, twice), (NONE, limit))
        ),
    ]  # fmt: skip
    return finding(
        "Sampled softmax against the number of negatives",
        "log q taken off every candidate leaves no bias at any K, off the negatives alone a bias "
        "that falls as 1 / K if accidental hits are removed, and no correction one that tends to "
        f"{limit:.3f}",
        f"{largest[EXACT].max():.1g} at most, a slope of {slope:.2f}, and "
        f"{largest[NONE][-1]:.3f} at K = {last} after {largest[NONE][0]:.3f} at K = {counts[0]}",
        checks,
        {"k": counts, "bias": largest, "limit": limit},
        claim="“More negatives give a better softmax” fails without a correction for q: "
        f"the bias went from {largest[NONE][0]:.3f} to {largest[NONE][-1]:.3f} as K grew from "
        f"{counts[0]} to {last}.",
    )
