# %% [markdown]
# # Tests of the theory behind noise-contrastive losses
# Four claims are tested on problems small enough to be summed exactly. Lines are theory; points
# are computed with the losses of this package. The last cell lists all checks and fails if one
# disagrees. `FULL=1` in the environment makes the problems larger. Optimal scores, temperatures,
# repeated and hard negatives are in `02_objectives`.

# %%
import functools
import itertools
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import multinomial

from cpc import losses, negatives

FULL = bool(os.environ.get("FULL"))
checks = []


def check(claim, measured, relation, expected, tolerance):
    off = float(measured - expected)
    agrees = {"=": abs(off), "<=": off, ">=": -off}[relation] <= tolerance
    checks.append((claim, float(measured), relation, float(expected), tolerance, agrees))


def count_draws(num, q):
    """Return all samples of `num` classes from q, as counts per class, with their probability.

    Losses ignore the order of negatives, and c copies of one act as a score higher by log c.
    """
    samples = itertools.combinations_with_replacement(range(len(q)), num)
    counts = np.array([np.bincount(one, minlength=len(q)) for one in samples])
    return counts, multinomial.pmf(counts, num, q)


# %% [markdown]
# ## 1. NCE converges to maximum likelihood as 1 / k
# NCE's gradient with k noise samples is sum_x k q / (p + k q) (p_data - p) grad log p (Mnih and Teh
# 2012, 3.1). Its relative distance from the likelihood's gradient tends to C / k, with a known C.


# %%
@functools.partial(jax.jit, static_argnames="mode")
def nce_ascent(theta, proposal, data, k, mode="fixed"):
    """Return the expected NCE loss of softmax(theta), negated, and its gradient."""

    def objective(theta):
        log_p = jax.nn.log_softmax(theta)
        logits = proposal if mode == "fixed" else theta
        log_q = negatives.propose(jax.random.key(0), logits, 1, mode).table
        # A candidate classified with certainty costs nothing, which leaves the other one's cost.
        certain = jnp.full_like(log_p, 1e4)
        noise = {"log_noise_positive": log_q, "log_noise_negatives": log_q[:, None]}
        as_data = losses.nce(log_p, -certain[:, None], **noise, log_normalizer=jnp.log(k))
        as_noise = losses.nce(certain, log_p[:, None], **noise, log_normalizer=jnp.log(k))
        return -(data @ as_data + k * jnp.exp(log_q) @ as_noise)

    return jax.value_and_grad(objective)(theta)


ks = (1, 3, 10, 30, 100, 300, 1000, 3000) if FULL else (1, 10, 100, 1000)
rng = np.random.default_rng(0)
theta, data = rng.normal(size=10), rng.dirichlet(np.full(10, 5.0))
p = np.exp(theta - np.logaddexp.reduce(theta))
far = rng.permuted(data) ** 3  # noise that is frequent if data are rare
noises = {"uniform": np.full(10, 0.1), "far": far / far.sum(), "the model's own, frozen": p}
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, q in noises.items():
    arrays = [jnp.asarray(x, jnp.float32) for x in (theta, np.log(q), data)]
    gradients = [nce_ascent(*arrays, float(k))[1] for k in ks]
    size = np.linalg.norm(data - p)
    error = np.array([np.linalg.norm(g - (data - p)) / size for g in gradients])
    terms = [(p / q) ** n * (data - p) for n in (1, 2)]  # k q / (p + k q) = 1 - p / k q + ..
    constant, next_order = (np.linalg.norm(x - p * x.sum()) / size for x in terms)
    slope = np.log(error[-1] / error[-2]) / np.log(ks[-1] / ks[-2])
    bend = next_order / (constant * ks[-2])
    check(f"1: slope, {name} noise", slope, "=", -1, bend + 0.01)
    check(f"1: k error, {name} noise", ks[-1] * error[-1], "=", constant, constant * (bend + 0.02))
    (line,) = axes.loglog(ks, error, "o", label=f"{name} noise")
    axes.loglog(ks, constant / np.array(ks), color=line.get_color(), linewidth=1)
axes.set(xlabel="k, noise samples per datum", ylabel="distance / |likelihood's gradient|")
axes.legend()
# %% [markdown]
# ## 2. Noise that follows the model
# If q is a frozen copy of p, the gradient is k / (k + 1) of the likelihood's (Goodfellow 2015). If
# the gradient also flows through q, the objective is constant and nothing is learned.

# %%
for k, mode in itertools.product((1, 5, 50), ("stopped", "through")):
    arrays = [jnp.asarray(x, jnp.float32) for x in (theta, theta, data)]
    value, gradient = nce_ascent(*arrays, float(k), mode)
    share = np.asarray(gradient, float) @ (data - p) / np.sum((data - p) ** 2)
    expected = k / (k + 1) * (mode == "stopped")
    check(f"2: share of the gradient, {mode}, k {k}", share, "=", expected, 1e-5)
    if mode == "through":
        constant = -np.log1p(k) + k * np.log(k / (k + 1))
        check(f"2: objective, through, k {k}", value, "=", constant, 1e-5)

# %% [markdown]
# ## 3. Sampled softmax
# At s = log p the full softmax has no gradient, and neither has the sampled softmax with log q
# subtracted from all scores. With log q subtracted from the negatives only, the gradient falls as 1
# / K if hits are removed, and not if they are kept. Without correction it tends to p q / sum(p q) -
# p, since InfoNCE learns the ratio p / q: more negatives do not help.

# %%
DATA, NOISE = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
ks = (1, 2, 4, 8, 16, 32, 64) if FULL else (1, 2, 4, 8, 16, 32)
CONVENTIONS = "all, hits kept", "negatives, hits kept", "negatives, hits removed", "none"


@functools.partial(jax.jit, static_argnames="name")
def gradient(s, weight, label, counts, k, name):
    """Return the gradient of the expected loss over all labels and samples of negatives."""
    log_q = jnp.log(jnp.asarray(NOISE, jnp.float32))

    def expected(s):
        mask = counts > 0
        if name == "negatives, hits removed":
            mask &= label[:, None] != jnp.arange(4)
        scores = s[label], s + jnp.log(jnp.maximum(counts, 1)), mask
        if name == "all, hits kept":
            noise = {"log_noise_positive": log_q[label], "log_noise_negatives": log_q}
            return weight @ losses.ranking_nce(*scores, **noise)
        if name == "none":
            return weight @ losses.info_nce(*scores)
        return weight @ losses.sampled_softmax(*scores, log_q_negatives=jnp.log(k) + log_q)

    return jax.grad(expected)(s)


def bias(name, k):
    """Return the gradient at s = log p for k negatives."""
    counts, probability = count_draws(k, NOISE)
    weight = np.outer(DATA, probability).astype(np.float32).ravel()
    label, counts = np.repeat(np.arange(4), len(counts)), np.tile(counts, (4, 1))
    return gradient(np.float32(np.log(DATA)), weight, label, counts, float(k), name)


found = {name: np.array([bias(name, k) for k in ks], float) for name in CONVENTIONS}
largest = {name: np.abs(one).max(1) for name, one in found.items()}
line = {name: np.abs(2 * g[-1] - g[-2]).max() for name, g in found.items()}  # at 1 / K = 0
limit = np.abs(DATA - DATA * NOISE / (DATA @ NOISE)).max()
kept = np.abs(DATA * (DATA / (1 + DATA) + (DATA / (1 + DATA)).sum() - 1)).max()
far, removed = (DATA / NOISE).max(), largest["negatives, hits removed"]
check("3: largest bias, all corrected", largest["all, hits kept"].max(), "=", 0, 1e-5)
slope = np.log2(removed[-1] / removed[-2])  # K doubles
check("3: slope over K, negatives corrected, hits removed", slope, "=", -1, far / ks[-2])
for name, expected in (("negatives, hits kept", kept), ("none", limit)):
    check(f"3: bias at K = inf, corrected: {name}", line[name], "=", expected, (far / ks[-1]) ** 2)
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, values in largest.items():
    axes.loglog(ks, np.maximum(values, 1e-8), "o-", label=name)
axes.axhline(limit, color="0.5", linestyle=":")
axes.set(xlabel="K, negatives", ylabel="largest bias of the gradient")
axes.legend(title="log q subtracted from")

# %% [markdown]
# ## 4. The exact value of log N - L
# With the optimal critic it is I - KL(mixture || product), a lower bound that approaches I as N
# grows and is tighter than the usual derivation's. All samples are enumerated.


# %%
def exact_bounds(joint, n):
    p_x, p_c = joint.sum(1), joint.sum(0)
    ratio = joint / np.outer(p_x, p_c)
    counts, probability = count_draws(n - 1, p_x)
    log_num, loss = np.log(np.maximum(counts, 1)), 0.0
    for x, c in np.ndindex(joint.shape):
        positive, scores = np.full(len(counts), np.log(ratio[x, c])), np.log(ratio[:, c]) + log_num
        each = losses.info_nce(np.float32(positive), np.float32(scores), counts > 0)
        loss += joint[x, c] * probability @ np.asarray(each, float)
    counts, probability = count_draws(n, p_x)
    mixture = counts @ ratio / n  # its density with respect to the product
    divergence = probability @ (mixture * np.log(mixture)) @ p_c
    truth = (joint * np.log(ratio)).sum()
    usual = (joint * np.log1p((n - 1) / ratio)).sum()
    return np.log(n) - loss, truth - divergence, np.log(n) - usual, truth


sizes, joint = (2, 3, 5, 10, 30, 100), np.array([[0.4, 0.1], [0.1, 0.4]])
bound, identity, usual, truth = np.transpose([exact_bounds(joint, n) for n in sizes])
for n, ours, exact, loose in zip(sizes, bound, identity, usual, strict=True):
    check(f"4: log N - L, N {n}", ours, "=", exact, 2e-6)
    check(f"4: usual derivation, N {n}", loose, "<=", ours, 0)
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.semilogx(sizes, bound, "o", sizes, identity, sizes, usual, "--", sizes, truth, ":k")
axes.legend(["log N - L", "I - KL", "usual derivation", "I"])
axes.set(xlabel="N", ylabel="nats")

# %% [markdown]
# ## All checks

# %%
table = pd.DataFrame(checks, columns=["claim", "measured", "", "expected", "tolerance", "agrees"])
print(table.to_string(index=False))
assert table.agrees.all(), table[~table.agrees].claim.tolist()
