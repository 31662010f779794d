# %% [markdown]
# # Choosing an objective, negatives and a temperature
#
# Five choices precede a contrastive run. This notebook examines each on a problem small enough to
# have a known answer. `studies/nce_theory` tests the underlying theory in more detail.

# %%
import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import optimize

from cpc import estimators, losses, negatives
from cpc.types import Position

# %% [markdown]
# ## 1. The objective: which score does it learn?
# `losses.describe` returns the score that minimises a loss, and the quantity that log N - L bounds.

# %%
names = "info_nce", "ranking_nce", "nce", "negative_sampling", "full_softmax", "full_logistic"
for name in names:
    info = losses.describe(getattr(losses, name))
    print(f"{info.name:18} {info.optimum:52} log N - L: {info.bounds or 'an estimate'}")

# %% [markdown]
# Four classes: the positive is drawn from p, and K = 3 negatives are drawn from q. All 4^4 samples
# are enumerated, so the expected loss is exact and its minimum can be compared with the stated one.

# %%
p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
K = 3
draws = np.array(list(itertools.product(range(4), repeat=1 + K)))
label, sample = jnp.asarray(draws[:, 0]), jnp.asarray(draws[:, 1:])
weight = jnp.asarray(p[draws[:, 0]] * q[draws[:, 1:]].prod(1), jnp.float32)
log_q = jnp.asarray(np.log(q), jnp.float32)
noise = {"log_noise_positive": log_q[label], "log_noise_negatives": log_q[sample]}


def broadcast(s):
    """Return the scores of all classes for each sample."""
    return jnp.broadcast_to(s, (len(draws), 4))


optimum = np.log(p / q / K)
objectives = {  # loss as a function of four scores, and its stated optimum
    "InfoNCE": (lambda s: losses.info_nce(s[label], s[sample]), np.log(p / q)),
    "ranking NCE": (lambda s: losses.ranking_nce(s[label], s[sample], **noise), np.log(p)),
    "binary NCE": (lambda s: losses.nce(s[label], s[sample], **noise), np.log(p)),
    "negative sampling": (lambda s: losses.negative_sampling(s[label], s[sample]), optimum),
    "full softmax": (lambda s: losses.full_softmax(broadcast(s), label), np.log(p)),
    "full logistic": (lambda s: losses.full_logistic(broadcast(s), label), np.log(p / (1 - p))),
}

# %%
free = {"InfoNCE", "ranking NCE", "full softmax"}  # optimal up to a constant
figure, panels = plt.subplots(2, 3, figsize=(9, 5.2), layout="constrained")
for axes, (name, (loss, optimum)) in zip(panels.flat, objectives.items(), strict=True):
    value = jax.jit(jax.value_and_grad(lambda s, loss=loss: weight @ loss(s)))
    value_of = lambda s, value=value: [np.float64(x) for x in value(np.float32(s))]  # noqa: E731
    learned = optimize.minimize(value_of, np.zeros(4), jac=True, tol=1e-9).x
    if name in free:
        learned, optimum = learned - learned.mean(), optimum - optimum.mean()
    axes.axline((0, 0), slope=1, color="0.7")
    axes.plot(optimum, learned, "o")
    axes.set(title=name, xlabel="stated optimum", ylabel="learned score")
    assert np.abs(learned - optimum).max() < 0.01, name

# %% [markdown]
# Every loss learns the stated score. InfoNCE learns the *ratio* p / q. To learn log p itself,
# subtract log q from the scores of all candidates (ranking NCE) or score every class.

# %% [markdown]
# ## 2. The negatives
# A rule decides which latents may be negatives, and an audit counts them before training, here for
# 8 windows of 16 latents. A negative is false if it has the positive's label.

# %%
rng = np.random.default_rng(0)
phone = np.repeat(rng.integers(0, 12, (8, 4)), 4, axis=1)  # each phone lasts 4 latents
positions = Position.grid(8, 16, group=np.arange(8) // 4)  # two speakers
rules = {
    "batch": negatives.batch,
    "other windows": negatives.excluding_sequence,
    "same speaker": negatives.same_group,
    "own window": negatives.own_sequence,
    "own, 4 away": negatives.own_sequence & negatives.outside_window(4),
}
rows = {name: negatives.audit(rule, positions, [2], labels=phone) for name, rule in rules.items()}
audits = {name: {row.name: row.value for row in audit} for name, audit in rows.items()}
print(negatives.format_audit(rows["batch"]))

# %%
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
false = [100 * audit["false_negatives"] for audit in audits.values()]
bars = axes.bar(list(rules), false, color=["C0", "C0", "C0", "C3", "C1"])
axes.bar_label(bars, [f"{audit['negatives_mean']:.0f} negatives" for audit in audits.values()])
axes.set(ylabel="false negatives, %", ylim=(0, 1.2 * max(false)))
assert audits["own window"]["false_negatives"] > audits["other windows"]["false_negatives"]

# %% [markdown]
# Negatives close to the positive are hard, but often false. The required width of the excluded
# window follows from how quickly the labels of neighbours change.

# %%
same = np.exp(-np.arange(128) / 6)  # probability of the same phone, by distance
window = negatives.exclusion_window(same, target=64, num_negatives=16, max_expected=0.25)
widths = np.arange(0, 33)
expected = [negatives.exclude_window(same, 64, int(d), 16).expected for d in widths]
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot(widths, expected)
axes.axhline(0.25, color="0.7", linestyle="--")
axes.plot(window.width, window.expected, "o")
axes.set(xlabel="excluded window, latents", ylabel="false negatives of 16")
print(window)

# %% [markdown]
# ## 3. The temperature
# At a low temperature, most of the gradient comes from the hardest negative; at a high one, all
# have the same weight. exp(entropy) is the effective number of negatives; `solve_temperature`
# inverts it.

# %%
cosines = jnp.asarray(rng.normal(0.1, 0.2, (1, 64)).clip(-1, 1), jnp.float32)
taus = np.geomspace(0.01, 3, 60)
scores_by_tau = jnp.broadcast_to(cosines, (len(taus), 64))  # one temperature per row
effective = np.exp(negatives.entropy(scores_by_tau, jnp.asarray(taus, jnp.float32)))
solve = jax.jit(negatives.solve_temperature)
temperatures = {n: float(solve(cosines, float(np.log(n)))) for n in (4, 16, 48)}

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
left.plot(taus, effective)
left.plot(list(temperatures.values()), list(temperatures), "o")
left.set(xscale="log", xlabel="temperature", ylabel="exp(entropy)", title="Effective negatives")
for tau in (0.03, 0.1, 1.0):
    shares = np.sort(np.asarray(negatives.negative_weights(cosines, tau))[0])[::-1]
    middle.plot(np.arange(1, 65), np.cumsum(shares), label=f"τ = {tau}")
middle.set(xlabel="hardest negatives", ylabel="share of gradient", title="Cumulative weight")
middle.legend()


@jax.jit
def compare(a, scores):
    """Return InfoNCE at temperature 0.1 and the triplet loss with the same margin."""
    hinge = losses.triplet(a, scores, margin=0.1 * float(np.log(scores.shape[1]))) / 0.1
    return losses.info_nce(a, scores, temperature=0.1), hinge


a = np.linspace(0, 1.2, 200, dtype=np.float32)
for K, colour in ((16, "C0"), (1024, "C1")):
    threshold = negatives.effective_margin(0.1, 0.1, K)
    soft, hinge = compare(a, np.full((200, K), 0.1, np.float32))
    right.plot(a, soft, color=colour, label=f"K = {K}")
    right.plot(a, hinge, color=colour, linestyle=":")
    right.axvline(threshold, color=colour, linewidth=0.5)
    gap = np.subtract(soft, hinge)
    assert gap.max() <= np.log(2) + 1e-4
    assert abs(float(a[gap.argmax()]) - threshold) < 0.01
right.set(xlabel="score of the positive", ylabel="nats", title="InfoNCE and triplet (dotted)")
right.legend()

# %% [markdown]
# InfoNCE is a smooth triplet loss: the positive must score above β + τ log K. More negatives
# require a larger margin, and as cosines are at most 1, no positive can reach it beyond some K.

# %% [markdown]
# ## 4. When is log N - L a bound?
# It is a lower bound if the negatives are independent draws from the marginal. A fair coin and its
# copy, which is right with probability 0.6, share 0.020 nats. The critic scores a match by b, and
# anything else by 0. With copies of one negative, log N - L is too high: N counts them all as
# draws.

# %%
coin = estimators.binary_symmetric_task(0.6)
repeats = 2 ** np.arange(10)


@jax.jit
def evaluate(b, copies):
    """Return the expected log N - L with copies of one independent negative."""
    positive, negative = jnp.array([b, b, 0, 0]), jnp.array([b, 0, b, 0])
    chance = jnp.array([0.6, 0.6, 0.4, 0.4]) / 2
    loss = losses.info_nce(positive, negative[:, None] + jnp.log(copies))
    return jnp.log(1.0 + copies) - chance @ loss


critics = jnp.linspace(0, 12, 600)
best = [float(jax.vmap(evaluate, (0, None))(critics, float(copies)).max()) for copies in repeats]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(repeats, best, "o-", label="log N - L, best critic")
axes.axhline(coin.mutual_information, color="k", linestyle=":", label="mutual information")
axes.set(xscale="log", xlabel="copies of one negative", ylabel="nats")
axes.legend()
assert best[0] < coin.mutual_information < best[-1]

# %% [markdown]
# The frames of one recording therefore count as one negative. Rules take this into account:

# %%
for rule in (negatives.one_per_sequence, negatives.batch, negatives.own_sequence):
    print(f"{rule.name:20} {'a bound' if rule.is_bound else 'an estimate'}")

# %% [markdown]
# ## 5. The number of negatives
# log N - L is at most log N. Even with the exact critic it is up to 10 % too low at 0.6 log N, and
# at least 28 % too low above 0.9 log N (`cpc.estimators.certify` measures it). How many negatives
# include a hard one depends on how rare hard ones are. A queue adds negatives, but from older
# parameters.

# %%
for density in (0.1, 0.01, 0.001):
    print(f"hard fraction {density}: {negatives.min_negatives(density, 0.95)} negatives")
for name, pool in zip(("batch", "queue"), negatives.compare_pool(64, 4096, 256, 0.01), strict=True):
    print(name, pool)
