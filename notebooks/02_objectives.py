# %% [markdown]
# # Which objective, which negatives, what temperature
#
# Five choices come before a contrastive run. Each is looked at here on a problem small enough to
# know the answer. `studies/nce_theory` checks the theory behind them at length.

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
# ## 1. Which objective: what does the score learn?
# Every loss states the score that minimises it, and what log N - L bounds, if anything.

# %%
names = "info_nce", "ranking_nce", "nce", "negative_sampling", "full_softmax", "full_logistic"
for name in names:
    told = losses.describe(getattr(losses, name))
    print(f"{told.name:18} {told.optimum:52} log N - L: {told.bounds or 'an estimate'}")

# %% [markdown]
# Four classes, drawn by p, among K = 3 negatives drawn by q. All 4^4 samples are visited, so that
# nothing is left to chance: the minimum of each loss is its optimum.

# %%
p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
K = 3
draws = np.array(list(itertools.product(range(4), repeat=1 + K)))
label, sample = jnp.asarray(draws[:, 0]), jnp.asarray(draws[:, 1:])
weight = jnp.asarray(p[draws[:, 0]] * q[draws[:, 1:]].prod(1), jnp.float32)
log_q = jnp.asarray(np.log(q), jnp.float32)
noise = {"log_noise_positive": log_q[label], "log_noise_negatives": log_q[sample]}


def every(s):
    """The scores of all classes, for each sample."""
    return jnp.broadcast_to(s, (len(draws), 4))


optimum = np.log(p / q / K)
objectives = {  # a function of the four classes' scores, and the optimum that it states
    "InfoNCE": (lambda s: losses.info_nce(s[label], s[sample]), np.log(p / q)),
    "ranking NCE": (lambda s: losses.ranking_nce(s[label], s[sample], **noise), np.log(p)),
    "binary NCE": (lambda s: losses.nce(s[label], s[sample], **noise), np.log(p)),
    "negative sampling": (lambda s: losses.negative_sampling(s[label], s[sample]), optimum),
    "full softmax": (lambda s: losses.full_softmax(every(s), label), np.log(p)),
    "full logistic": (lambda s: losses.full_logistic(every(s), label), np.log(p / (1 - p))),
}

# %%
free = {"InfoNCE", "ranking NCE", "full softmax"}  # a softmax leaves a constant free
figure, panels = plt.subplots(2, 3, figsize=(9, 5.2), layout="constrained")
for axes, (name, (of_scores, optimum)) in zip(panels.flat, objectives.items(), strict=True):
    value = jax.jit(jax.value_and_grad(lambda s, of_scores=of_scores: weight @ of_scores(s)))
    value_of = lambda s, value=value: [np.float64(x) for x in value(np.float32(s))]  # noqa: E731
    found = optimize.minimize(value_of, np.zeros(4), jac=True, tol=1e-9).x
    if name in free:
        found, optimum = found - found.mean(), optimum - optimum.mean()
    axes.axline((0, 0), slope=1, color="0.7")
    axes.plot(optimum, found, "o")
    axes.set(title=name, xlabel="stated", ylabel="learned")
    assert np.abs(found - optimum).max() < 0.01, name

# %% [markdown]
# All do what they state. InfoNCE learns a *ratio*: to get log p itself, take log q off every
# candidate (ranking NCE) or visit every class.

# %% [markdown]
# ## 2. Which negatives?
# A rule says who may be a negative. An audit counts what that means, before any training: 8
# windows of 16 latents, in which neighbours often share a phone.

# %%
rng = np.random.default_rng(0)
phone = np.repeat(rng.integers(0, 12, (8, 4)), 4, axis=1)  # each phone lasts 4 latents
here = Position.grid(8, 16, group=np.arange(8) // 4)  # two speakers
rules = {
    "batch": negatives.batch,
    "other windows": negatives.excluding_sequence,
    "same speaker": negatives.same_group,
    "own window": negatives.own_sequence,
    "own, 4 away": negatives.own_sequence & negatives.outside_window(4),
}
rows = {name: negatives.audit(rule, here, [2], labels=phone) for name, rule in rules.items()}
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
# Close negatives are hard ones, and often false ones. How wide a window to leave out follows from
# how fast neighbours become unlike each other.

# %%
same = np.exp(-np.arange(128) / 6)  # chance that a latent so far away is the same phone
window = negatives.exclusion_window(same, target=64, num_negatives=16, max_expected=0.25)
widths = np.arange(0, 33)
expected = [negatives.exclude_window(same, 64, int(d), 16).expected for d in widths]
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot(widths, expected)
axes.axhline(0.25, color="0.7", linestyle="--")
axes.plot(window.width, window.expected, "o")
axes.set(xlabel="window left out, latents", ylabel="false among 16 drawn")
print(window)

# %% [markdown]
# ## 3. What temperature?
# A low temperature puts all the push on the hardest negative, a high one treats all alike. Between
# them the entropy says how many negatives take part, and can be asked for.

# %%
cosines = jnp.asarray(rng.normal(0.1, 0.2, (1, 64)).clip(-1, 1), jnp.float32)
taus = np.geomspace(0.01, 3, 60)
for_each = jnp.broadcast_to(cosines, (len(taus), 64))  # one temperature per row
taking_part = np.exp(negatives.entropy(for_each, jnp.asarray(taus, jnp.float32)))
solve = jax.jit(negatives.solve_temperature)
wanted = {n: float(solve(cosines, float(np.log(n)))) for n in (4, 16, 48)}

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
left.plot(taus, taking_part)
left.plot(list(wanted.values()), list(wanted), "o")
left.set(xscale="log", xlabel="temperature", ylabel="exp(entropy)", title="Negatives taking part")
for tau in (0.03, 0.1, 1.0):
    shares = np.sort(np.asarray(negatives.negative_weights(cosines, tau))[0])[::-1]
    middle.plot(np.arange(1, 65), np.cumsum(shares), label=f"τ = {tau}")
middle.set(xlabel="hardest negatives", ylabel="share of the push", title="Who is pushed")
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
right.set(xlabel="score of the positive", ylabel="nats", title="InfoNCE, and triplet (dotted)")
right.legend()

# %% [markdown]
# InfoNCE is a triplet loss with its corner rounded off: the positive must pass β + τ log K. More
# negatives ask for more margin, and with cosines there is a K beyond which none is high enough.

# %% [markdown]
# ## 4. Is log N - L a bound?
# With independent negatives from the marginal it is. A fair coin and its copy, right with
# probability 0.6, share 0.020 nats; the critic gives b to a match. One negative repeated many
# times reads far more, as the loss then tells apart what one negative is, not many.

# %%
coin = estimators.binary_symmetric_task(0.6)
repeats = 2 ** np.arange(10)


@jax.jit
def read(b, copies):
    """Log N - L with one independent negative, repeated; expectation over all four outcomes."""
    positive, negative = jnp.array([b, b, 0, 0]), jnp.array([b, 0, b, 0])
    chance = jnp.array([0.6, 0.6, 0.4, 0.4]) / 2
    loss = losses.info_nce(positive, negative[:, None] + jnp.log(copies))
    return jnp.log(1.0 + copies) - chance @ loss


critics = jnp.linspace(0, 12, 600)
best = [float(jax.vmap(read, (0, None))(critics, float(copies)).max()) for copies in repeats]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(repeats, best, "o-", label="log N - L, best critic")
axes.axhline(coin.mutual_information, color="k", linestyle=":", label="I")
axes.set(xscale="log", xlabel="copies of one negative", ylabel="nats")
axes.legend()
assert best[0] < coin.mutual_information < best[-1]

# %% [markdown]
# So frames of one recording are one negative, however many there are. Rules know it:

# %%
for rule in (negatives.one_per_sequence, negatives.batch, negatives.own_sequence):
    print(f"{rule.name:20} {'a bound' if rule.is_bound else 'an estimate'}")

# %% [markdown]
# ## 5. How many negatives?
# The ceiling is log N, and even the exact critic reads low long before it: by up to 10 % at 0.6
# log N, by 28 % and more above 0.9 log N (measured and drawn in `studies/nce_theory`). How many are
# needed to meet a hard one follows from how rare hard ones are, and a queue buys them with
# staleness.

# %%
for density in (0.1, 0.01, 0.001):
    print(f"a share of {density:5} is hard: {negatives.min_negatives(density, 0.95):5} negatives")
for name, pool in zip(("batch", "queue"), negatives.compare_pool(64, 4096, 256, 0.01), strict=True):
    print(name, pool)
