"""Log N - L: the exact identity behind the bound, what breaks it, and how low it reads."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize
from scipy.stats import binom

from cpc.estimators import binary_symmetric_task
from cpc.estimators import info_nce as estimate_info_nce
from cpc.estimators.discrete_tasks import discrete_information
from cpc.estimators.tasks import correlated_gaussians, gaussian_log_ratio
from cpc.losses import info_nce
from experiments.studies.nce.enumerate import count_draws
from experiments.studies.nce.findings import Finding, check, finding

jit_info_nce = jax.jit(info_nce)


def counted_loss(positive: Any, negatives: Any, counts: Any) -> np.ndarray:
    """Return InfoNCE with each negative as often as `counts` (m, v) say; float64 (m,)."""
    copies = negatives + np.log(np.maximum(counts, 1))
    arrays = (jnp.asarray(part, jnp.float32) for part in (positive, copies))
    return np.asarray(jit_info_nce(*arrays, jnp.asarray(counts > 0)), np.float64)


def information_seen(joint: np.ndarray, n: int) -> dict[str, float]:
    """Return the best critic's log N - L on p(x, c), I - KL, and the usual derivation's bound.

    Each by a sum over all there is: L over the joint's positives, KL of the mixture from the
    product over independent draws.
    """
    p_x, p_c = joint.sum(1), joint.sum(0)
    ratio = joint / np.outer(p_x, p_c)
    counts, probability = count_draws(n - 1, p_x)
    loss = 0.0
    for x, c in np.argwhere(joint > 0):
        positive = np.full(len(counts), np.log(ratio[x, c]))
        negatives = np.log(np.maximum(ratio[:, c], 1e-30))
        loss += joint[x, c] * probability @ counted_loss(positive, negatives, counts)
    counts, probability = count_draws(n, p_x)
    mixture = counts @ ratio / n  # its density with respect to the product, (r, c)
    divergence = probability @ (mixture * np.log(np.maximum(mixture, 1e-30))) @ p_c
    seen = joint > 0
    usual = joint[seen] @ np.log1p((n - 1) / ratio[seen])
    return {
        "bound": math.log(n) - float(loss),
        "identity": discrete_information(joint) - float(divergence),
        "usual": math.log(n) - float(usual),
    }


def identity(accuracy: float, sizes: Sequence[int]) -> Finding:
    """Check that the best critic's log N - L is I - KL(mixture || product), which bounds I."""
    joint = np.array([[accuracy, 1 - accuracy], [1 - accuracy, accuracy]]) / 2
    truth = discrete_information(joint)
    seen = [information_seen(joint, n) for n in sizes]
    curves = {name: [one[name] for one in seen] for name in ("bound", "identity", "usual")}
    rounding = "float32 of log N"
    checks = [
        check(f"log N - L, N = {n}", one["bound"], one["identity"], 2e-6, rounding)
        for n, one in zip(sizes, seen, strict=True)
    ]
    checks += [
        check(f"usual derivation, N = {n}", one["usual"], one["bound"], 0, "an inequality", "<=")
        for n, one in zip(sizes, seen, strict=True)
    ]
    worst = max(abs(r["measured"] - r["expected"]) for r in checks[: len(sizes)])
    return finding(
        "What log N - L is, exactly",
        "with the best critic log N - L is I less the divergence of the mixture from the product, "
        "a lower bound that closes as N grows",
        f"the two differ by {worst:.1g} nats at most, and log N - L reaches "
        f"{100 * seen[-1]['bound'] / truth:.1f} % of I at N = {sizes[-1]}",
        checks,
        {"n": sizes, "information": truth, **curves},
    )


def best_with_repeats(accuracy: float, num_independent: int, num_copies: int) -> float:
    """Return the greatest log N - L of critics b [x = c], if each negative comes several times."""
    matching = np.arange(num_independent + 1)
    probability = binom.pmf(matching, num_independent, 0.5)
    counts = num_copies * np.stack([matching, num_independent - matching], 1)
    log_n = math.log(num_independent * num_copies + 1)

    def loss(b):
        scores = np.array([b, 0.0])
        right, wrong = (counted_loss(np.full(len(counts), s), scores, counts) for s in scores)
        return probability @ (accuracy * right + (1 - accuracy) * wrong)

    return log_n - optimize.minimize_scalar(loss, bounds=(0, 15), method="bounded").fun


def dependent_negatives(accuracy: float, num_negatives: int, independent: Sequence[int]) -> Finding:
    """Check that negatives which depend on each other carry log N - L above I.

    Each number of `independent` divides `num_negatives`.
    """
    truth = binary_symmetric_task(accuracy).mutual_information
    values = [best_with_repeats(accuracy, j, num_negatives // j) for j in independent]
    reason = "an inequality, but for float32"
    checks = [
        check(f"all {num_negatives} independent", values[-1], truth, 1e-5, reason, "<="),
        check(f"one, {num_negatives} times", values[0], truth, 0, reason, ">="),
        check("fall with independent ones", np.diff(values).max(), 0, 1e-5, reason, "<="),
    ]
    return finding(
        "Negatives that repeat break the bound",
        f"no more than I = {truth:.4f} nats with {num_negatives} independent negatives, more with "
        f"one that is repeated {num_negatives} times, and a fall between",
        f"{values[-1]:.4f} and {values[0]:.4f} nats",
        checks,
        {"independent": independent, "value": values, "information": truth, "num": num_negatives},
        claim="“log N - L never exceeds the information” fails unless the negatives are "
        f"independent of each other: it reads {values[0]:.2f} nats where there are {truth:.2f}.",
    )


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def read_batches(rng: Any, nats: Any, n: int, num_batches: int, dim: int) -> tuple[Any, Any]:
    """Return what the exact critic reads and its shortfall, for each batch."""

    def read(rng):
        scores = gaussian_log_ratio(*correlated_gaussians(rng, n, dim, nats), nats)
        value = estimate_info_nce(scores).value
        # The diagonal's mean is I but for sampling; taken off it leaves a shortfall of less noise.
        return value, jnp.diagonal(scores).mean() - value

    return jax.lax.map(read, jax.random.split(rng, num_batches))


def bias_against_n(
    informations: Sequence[float], sizes: Sequence[int], num_pairs: int, seed: int, dim: int = 20
) -> Finding:
    """Check the best that InfoNCE can read: below I and log N, and low long before log N.

    Where I is small its shortfall is Var(r) / 2 N, with (e^(2 I) - 1) / 2 N for correlated
    Gaussians; that is looked at where I = 1 / 2 and N = 64, on 16 times as many pairs.
    """
    values, biases, errors = (np.zeros((len(informations), len(sizes))) for _ in range(3))
    for i, nats in enumerate(informations):
        for j, n in enumerate(sizes):
            num_batches = max(8, num_pairs // n)
            rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), n), i)
            value, short = read_batches(rng, jnp.float32(nats), n, num_batches, dim)
            values[i, j], biases[i, j] = np.mean(value), np.mean(short)
            errors[i, j] = np.std(short) / math.sqrt(num_batches)
    truth, log_n = np.array(informations)[:, None], np.log(sizes)
    num_batches = max(8, num_pairs // 4)
    _, short = read_batches(jax.random.key(seed), jnp.float32(0.5), 64, num_batches, dim)
    law, found = math.expm1(1) / 2, 64 * float(np.mean(short))
    error = 64 * float(np.std(short)) / math.sqrt(num_batches)
    fraction, relative = (truth - biases) / log_n, biases / truth
    checks = [
        check("above I, greatest", -(biases + 4 * errors).min(), 0, 0, "4 standard errors", "<="),
        check("above log N, greatest", (values - log_n).max(), 0, 1e-5, "float32", "<="),
        check("N times bias, I = 0.5, N = 64", found, law, 4 * error + 2.2 / 64,
            "4 standard errors, and the next order"),
        check("bias at up to 0.6 log N, greatest fraction", relative[fraction <= 0.6].max(),
            0.10, 0.02, "two digits, from N = 64 on", "<="),
    ]  # fmt: skip
    said = f"{100 * relative[fraction <= 0.6].max():.0f} % at most up to 0.6 log N"
    if (fraction > 0.9).any():
        least_saturated = relative[fraction > 0.9].min()
        said += f", {100 * least_saturated:.0f} % at least above 0.9 log N"
        checks.append(
            check("bias above 0.9 log N, least fraction", least_saturated, 0.28, 0.02,
                "two digits, from N = 64 on", ">=")
        )  # fmt: skip
    return finding(
        "Bound and bias against N, with the exact critic",
        "never above I nor log N; a bias of (e^(2I) - 1) / (2N) where I is small; within 10 % of I "
        "up to 0.6 log N, and 28 % or more above 0.9 log N",
        f"N times the bias is {found:.3f} for {law:.3f} at I = 0.5; "
        + said,
        checks,
        {"information": informations, "n": sizes, "value": values, "share": fraction,
         "relative_bias": relative},
    )  # fmt: skip
