"""Noise-contrastive estimation against maximum likelihood: fixed noise, and noise that follows."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.losses import nce
from cpc.negatives import propose
from cpc.negatives.proposal import GradientMode
from experiments.studies.nce.findings import Finding, check, finding

MODES: tuple[GradientMode, ...] = ("fixed", "stopped", "through")


def population_loss(log_model: Any, log_noise: Any, data: Any, k: Any) -> Any:
    """Return NCE with k noise samples, averaged over data and noise without sampling."""
    # Beside a candidate that is surely told apart, one candidate's cost is left. `log_normalizer`
    # adds the log k of which a single noise sample knows nothing.
    surely = jnp.full_like(log_model, 1e4)
    noise = {"log_noise_positive": log_noise, "log_noise_negatives": log_noise[:, None]}
    as_data = nce(log_model, -surely[:, None], **noise, log_normalizer=jnp.log(k))
    as_noise = nce(surely, log_model[:, None], **noise, log_normalizer=jnp.log(k))
    return data @ as_data + k * jnp.exp(log_noise) @ as_noise


@functools.partial(jax.jit, static_argnames="mode")
def nce_ascent(theta: Any, proposal: Any, data: Any, k: Any, mode: GradientMode) -> Any:
    """Return the objective of softmax(theta) with noise softmax(proposal), and its gradient.

    Unless the mode is "fixed", the proposal is theta itself.
    """

    def objective(theta):
        logits = proposal if mode == "fixed" else theta
        log_noise = propose(jax.random.key(0), logits, 1, mode).table
        return -population_loss(jax.nn.log_softmax(theta), log_noise, data, k)

    return jax.value_and_grad(objective)(theta)


def relative_errors(theta: Any, data: Any, noise: Any, counts: Sequence[int]) -> np.ndarray:
    """Return how far NCE's gradient is from the likelihood's, relative to it, for each k."""
    theta, data, noise = (jnp.asarray(part, jnp.float32) for part in (theta, data, noise))
    exact = np.asarray(data - jax.nn.softmax(theta))
    gradients = [nce_ascent(theta, jnp.log(noise), data, float(k), "fixed")[1] for k in counts]
    return np.array([np.linalg.norm(g - exact) / np.linalg.norm(exact) for g in gradients])


def limit_constant(theta: Any, data: Any, noise: Any, order: int = 1) -> float:
    """Return C of the relative error's C / k^order: k q / (p + k q) is 1 - p / (k q) + ..."""
    p = np.exp(theta - np.logaddexp.reduce(theta))
    lost = (p / noise) ** order * (data - p)
    return float(np.linalg.norm(lost - p * lost.sum()) / np.linalg.norm(data - p))


def likelihood_limit(num_classes: int, counts: Sequence[int], seed: int) -> Finding:
    """Check that with k noise samples NCE's gradient is the likelihood's, but for C / k.

    dJ_k = sum_x k q / (p + k q) (p_data - p) grad log p  (Mnih and Teh 2012, section 3.1)
    """
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=num_classes)
    model = np.exp(theta - np.logaddexp.reduce(theta))
    data = rng.dirichlet(np.full(num_classes, 5.0))
    far = rng.permuted(data) ** 3  # frequent where the data are not
    noises = {"uniform": np.full(num_classes, 1 / num_classes), "far": far / far.sum()}
    noises["the model's own, frozen"] = model
    curves, checks = {}, []
    for name, noise in noises.items():
        errors = relative_errors(theta, data, noise, counts)
        constant = limit_constant(theta, data, noise)
        slope = np.log(errors[-1] / errors[-2]) / np.log(counts[-1] / counts[-2])
        bend = limit_constant(theta, data, noise, 2) / (constant * counts[-2])
        reason = "the next order, and float32"
        checks.append(check(f"slope, {name} noise", slope, -1, bend + 0.01, reason))
        checks.append(
            check(
                f"k times error, {name} noise, k = {counts[-1]}",
                counts[-1] * errors[-1],
                constant,
                constant * (bend + 0.02),
                reason,
            )
        )
        curves[name] = {"error": errors, "constant": constant}
    slopes = [r["measured"] for r in checks[::2]]
    return finding(
        "NCE tends to maximum likelihood as 1 / k",
        "the relative distance of the two gradients is C / k, a slope of -1, with C known from "
        "p, q and the data",
        f"slopes from {min(slopes):.3f} to {max(slopes):.3f}, and k times the distance "
        + ", ".join(f"{r['measured']:.3g} for {r['expected']:.3g}" for r in checks[1::2]),
        checks,
        {"k": counts, "noises": curves},
    )


@functools.partial(jax.jit, static_argnames=("mode", "n", "k", "num_runs", "num_steps"))
def fit_means(
    rng: Any, mode: GradientMode, n: int, k: int, num_runs: int, mean: float, num_steps: int = 8
) -> Any:
    """Fit the mean of a unit normal by NCE from n data and k n noise samples, from 0, many times.

    Fixed noise is the model before training. Noise that follows keeps its standard normals and
    moves with the model, so that plain gradient descent settles.
    """

    def fit(rng):
        of_data, of_noise = jax.random.split(rng)
        x = mean + jax.random.normal(of_data, (n,))
        standard = jax.random.normal(of_noise, (n, k))

        def loss(mu):
            where = {"fixed": 0.0, "stopped": jax.lax.stop_gradient(mu), "through": mu}[mode]
            y = jax.lax.stop_gradient(where) + standard

            def log_density(at, center):  # but for a constant, which is the same in both
                return -jnp.square(at - center) / 2

            return nce(
                log_density(x, mu),
                log_density(y, mu),
                log_noise_positive=log_density(x, where),
                log_noise_negatives=log_density(y, where),
            ).mean()

        return jax.lax.fori_loop(0, num_steps, lambda _, mu: mu - jax.grad(loss)(mu), 0.0)

    return jax.lax.map(fit, jax.random.split(rng, num_runs))


def fixed_noise_deviation(mean: float, k: int) -> float:
    """Return the standard deviation of sqrt(n) (estimate - mean) with noise N(0, 1).

    (A - m^2 (1 + 1 / k)) / A^2,  A = sum of h g^2,  m = sum of h g,  h = k q p / (p + k q),
    g = x - mean  (Gutmann and Hyvarinen 2012, theorem 3)
    """
    x, step = np.linspace(-12, 12, 24001, retstep=True)
    p, q = (np.exp(-((x - at) ** 2) / 2) / np.sqrt(2 * np.pi) for at in (mean, 0.0))
    h = k * q * p / (p + k * q) * step
    a, m = h @ (x - mean) ** 2, h @ (x - mean)
    return float(np.sqrt(a - m**2 * (1 + 1 / k)) / a)


def noise_modes(
    sizes: Sequence[int], k: int, num_runs: int, counts: Sequence[int], seed: int, mean: float = 0.3
) -> Finding:
    """Check that noise which depends on the parameters learns, unless gradients flow through it.

    Frozen at q = p_theta: k / (k + 1) times the likelihood's gradient (Goodfellow 2015). Through q:
    the objective is the constant -log(1 + k) + k log(k / (k + 1)).
    """
    checks, curves = [], {"k": counts, "n": sizes, "ratio": {}, "error": {}, "expected": {}}
    rng = np.random.default_rng(seed)
    theta = jnp.asarray(rng.normal(size=8), jnp.float32)
    data = jnp.asarray(rng.dirichlet(np.ones(8)), jnp.float32)
    likelihood = np.asarray(data - jax.nn.softmax(theta), np.float64)
    for mode in ("stopped", "through"):
        found = [nce_ascent(theta, theta, data, float(j), mode) for j in counts]
        ratios = np.array([g @ likelihood / (likelihood @ likelihood) for _, g in found])
        curves["ratio"][mode] = ratios
        for j, ratio, (value, _) in zip(counts, ratios, found, strict=True):
            wanted = j / (j + 1) if mode == "stopped" else 0.0
            checks.append(
                check(f"gradient's fraction, {mode}, k = {j}", ratio, wanted, 1e-5, "float32")
            )
            if mode == "through":
                constant = -np.log1p(j) + j * np.log(j / (j + 1))
                checks.append(check(f"objective, k = {j}", value, constant, 1e-5, "float32"))
    deviation = {"fixed": fixed_noise_deviation(mean, k), "stopped": np.sqrt(1 + 1 / k)}
    spread = 1 / np.sqrt(2 * num_runs)
    log_n = np.log(sizes)
    slope_error = spread / np.sqrt(((log_n - log_n.mean()) ** 2).sum())
    for mode in MODES:
        fits = [
            np.asarray(fit_means(jax.random.fold_in(jax.random.key(seed), n), mode, n, k,
                                 num_runs, mean))
            for n in sizes
        ]  # fmt: skip
        errors = np.array([np.sqrt(((fit - mean) ** 2).mean()) for fit in fits])
        curves["error"][mode] = errors
        if mode == "through":
            moved = max(np.abs(fit).max() for fit in fits)
            checks.append(check("way moved, through", moved, 0, 1e-5, "float32"))
            curves["expected"][mode] = np.full(len(sizes), mean)
            continue
        curves["expected"][mode] = deviation[mode] / np.sqrt(sizes)
        slope = np.polyfit(log_n, np.log(errors), 1)[0]
        few = f"4 standard errors of {num_runs} runs"
        checks.append(check(f"slope over n, {mode}", slope, -0.5, 4 * slope_error, few))
        checks.append(
            check(f"error times sqrt(n), {mode}, n = {sizes[-1]}", errors[-1] * np.sqrt(sizes[-1]),
                deviation[mode], 4 * spread * deviation[mode], few)
        )  # fmt: skip
    fixed, stopped, through = (curves["error"][mode][-1] for mode in MODES)
    return finding(
        "Noise that follows the model",
        "with its gradient stopped it gives k / (k + 1) of the likelihood's gradient, and an error "
        "that falls as n to the -1/2, as fixed noise does; with the gradient through it the "
        "objective is constant and nothing moves",
        f"errors at n = {sizes[-1]:,} are {fixed:.4f} with fixed noise, {stopped:.4f} with the "
        f"gradient stopped, and {through:.3f}, as at the start, with the gradient through it",
        checks,
        curves,
        claim="“Noise that depends on the parameters cannot learn” fails: it learns "
        "where the gradient does not see it, and is stuck only where the gradient flows through "
        "its density.",
    )
