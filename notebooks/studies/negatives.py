# %% [markdown]
# # Negatives of a run: false ones, hard ones and gradient noise
#
# The data and the newest checkpoint of a run answer three questions before a sweep. How often does
# a latent d steps from the positive have its label, and how wide must the excluded window be? How
# many negatives are hard, and how large must K be? How noisy is the gradient with K negatives?
# `RUN` in the environment names a run; without it and without `runs/voices`, a small run on
# synthetic sound is trained. The results of a sweep are in `docs/results/negatives.md`.

# %%
import contextlib
import os
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

ROOT = pathlib.Path("../..").resolve()  # contains configs and experiments
sys.path.insert(0, str(ROOT))
from configs import audio_synthetic
from cpc import negatives
from cpc.losses import OffsetSums
from cpc.results.score import read_records
from cpc.train import gather_rows, restore_params
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.registry import read_contrastive
from experiments.train import run as train
from experiments.training import contrastive, objective
from experiments.training.problem import model_variables
from experiments.training.step import make_loss

FULL = bool(os.environ.get("FULL"))  # larger sizes
run = ROOT / os.environ.get("RUN", "runs/voices")
if not (run / "checkpoints").exists():
    assert "RUN" not in os.environ, f"{run} has no checkpoints"
    run = pathlib.Path(tempfile.mkdtemp())
    settings = {
        "num_steps": 60, "eval_every": 60, "save_every": 60, "loss.cosine": True,
        "negatives.temperature": 0.2, "data.window_samples": 4000, "data.batch_size": 8,
        "model.width": 16, "model.context_width": 16, "evaluate.num_windows": 128,
        "probe.tasks": (),
    }  # fmt: skip
    train(with_settings(audio_synthetic.get_config(), settings), str(run))

kind, config = read_contrastive(run)
arrays, _, step = restore_params(run / "checkpoints")
# A checkpoint that is read without its state omits empty entries.
params, extra = ({"objective": {}, **arrays[part]} for part in ("params", "extra"))
arrays = {**arrays, "params": params, "extra": {"model": {}, **extra}}
arrays = jax.tree.map(jnp.asarray, arrays)
data = kind.load_data(config, print)
problem = kind.make_problem(contrastive.interpret(kind, config), data)
print(f"{run}, step {step:,}, {problem.plan.negatives}")

# %% [markdown]
# ## 1. False negatives by distance from the positive
# The figure has p(same label | lag), counted over batches. The table has the smallest excluded
# window for each budget, the expected fraction of false negatives among 16 from the positive's own
# sequence. If a curve is flat, negatives of the own sequence are as clean as others.

# %%
DRAWN, BUDGETS = 16, (0.2, 0.1, 0.07, 0.05)
counts, windows = {}, []
for i in range(400 if FULL else 30):
    for name, labels in problem.label(gather_rows(problem.draw(i))).items():
        if labels.ndim == 2 and labels.shape[1] > 1:  # one label per latent, not per sequence
            counts.setdefault(name, []).append(negatives.count_same(labels))
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, each in counts.items():
    pairs, same = (np.sum(part, axis=0) for part in zip(*each, strict=True))
    if pairs.min() == 0:
        continue
    chance = same / pairs
    assert chance[0] == 1
    axes.plot(chance, label=name)
    for budget in BUDGETS:
        row = {"label": name, "budget": budget, "width": None}
        with contextlib.suppress(UserError):  # no window attains the budget
            window = negatives.exclusion_window(chance, len(chance) // 2, DRAWN, budget * DRAWN)
            row |= window._asdict()
        windows.append(row)
axes.set(xlabel="steps from the positive", ylabel="p(same label)", ylim=0)
axes.legend()
table = pd.DataFrame(windows)
if len(table):
    print(table.to_string(index=False))
    assert all(one.width.dropna().is_monotonic_increasing for _, one in table.groupby("label"))

# %% [markdown]
# ## 2. Number of negatives needed to include a hard one
# A negative is hard if it beats the positive of its held-out anchor, or has at least 1 / e of its
# weight. K from the mean is log(1 - h) / log(1 - rho) for hit rate h and the mean density rho over
# anchors. Since anchors differ, that K has a lower hit rate, and more negatives are needed.

# %%
plan, rng = problem.plan, jax.random.key(0)
variables = model_variables(**arrays)
tau = objective.temperature(plan, arrays["params"]["objective"], arrays["extra"]["objective"])


@jax.jit
def score(batch):
    batch = problem.preprocess(batch, rng, False)
    outputs = problem.model.apply(variables, batch, False)[0]
    branch = problem.split_branches(outputs, batch)[0]
    branch = branch._replace(outputs=objective.scored(plan, branch.outputs))
    offsets = plan.geometry.branches[0].offsets
    return objective.sampled_scores(branch, plan.rule, None, offsets, tau, rng)


draw = problem.held_out.draw if problem.held_out else problem.draw
scores = [jax.device_get(score(gather_rows(draw(i)))) for i in range(16)]
rows = []
for name, margin in (("beats the positive", 0.0), ("has 1 / e of its weight", 1.0)):
    each = np.concatenate([negatives.hard_fractions(*one, margin=margin) for one in scores])
    each = each[np.isfinite(each)]
    mean = float(each.mean())
    for rate in (0.5, 0.8, 0.95):
        k_by_mean = negatives.min_negatives(mean, rate) if mean > 0 else None
        rate_by_mean = negatives.mean_hit_rate(each, k_by_mean) if k_by_mean else None
        k_needed = None
        with contextlib.suppress(UserError):  # too many anchors have no hard negative
            k_needed = negatives.min_negatives_for(each, rate)
        rows.append((name, mean, (each == 0).mean(), rate, k_by_mean, rate_by_mean, k_needed))
names = ["hard if it", "density", "anchors without", "rate", "K from mean", "its rate", "K needed"]
table = pd.DataFrame(rows, columns=names)
print(table.to_string(index=False))
complete = table.dropna()
assert (complete["K needed"] >= complete["K from mean"]).all()

# %% [markdown]
# The pairwise accuracy computed here should equal that of the run's last evaluation.

# %%
tests = [one for one in read_records(run, []) if one["split"] == "test" and "series" not in one]
recorded, accuracy = np.mean(tests[-1]["acc_pairwise"]), 1 - table["density"][0]
print(f"pairwise accuracy: {recorded:.3f} recorded, {accuracy:.3f} here")
assert abs(accuracy - recorded) < 0.05

# %% [markdown]
# ## 3. Noise of the gradient with K negatives
# The table has the variance of the gradient over draws of K negatives for one batch, relative to
# the squared norm of its mean, and to the variance over batches with all negatives, which it adds
# to. The cosine is between the mean over draws and the gradient with all negatives.


# %%
def make_gradient(num_sampled):
    """Return the function from (batch, rng) to the flat gradient with K negatives (0: all)."""
    settings = {"negatives.num_sampled": num_sampled, "negatives.choose": "uniform"}
    plan = contrastive.interpret(kind, with_settings(config, settings))
    loss = make_loss(kind.make_problem(plan, data))
    gradient_fn = jax.jit(jax.grad(loss, has_aux=True))

    def gradient(batch, rng):
        leaves = jax.tree.leaves(gradient_fn(arrays["params"], arrays["extra"], batch, rng)[0])
        return np.concatenate([np.ravel(leaf) for leaf in jax.device_get(leaves)]).astype(float)

    return gradient


def spread(gradients):
    """Return the mean, the variance about it, and an unbiased squared norm of the mean."""
    mean = np.mean(gradients, axis=0)
    variance = np.square(gradients - mean).sum() / (len(gradients) - 1)
    return mean, variance, np.square(mean).sum() - variance / len(gradients)


batches, full_gradient = [problem.draw(i) for i in range(8)], make_gradient(0)
_, of_batches, _ = spread([full_gradient(batch, rng) for batch in batches])
all_negatives, rows = full_gradient(batches[0], rng), []
_, (_, metrics) = make_loss(problem)(arrays["params"], arrays["extra"], batches[0], rng)
sums = jax.tree.leaves(metrics, is_leaf=lambda leaf: isinstance(leaf, OffsetSums))
max_k = min((one.n / one.anchors).min() for one in sums if isinstance(one, OffsetSums))
for size in (16, 32, 64, 128, 256, 512, 1024) if FULL else (8, 32):
    if size >= max_k:
        break
    gradient = make_gradient(size)
    mean, variance, norm = spread([gradient(batches[0], jax.random.key(i)) for i in range(8)])
    cosine = mean @ all_negatives / np.linalg.norm(mean) / np.linalg.norm(all_negatives)
    rows.append((size, variance / norm, variance / of_batches, cosine))
names = ["K", "variance / |mean|^2", "variance / variance of batches", "cosine"]
table = pd.DataFrame(rows, columns=names)
print(table.to_string(index=False))
assert table["variance / |mean|^2"].is_monotonic_decreasing, "noise does not decrease with K"
