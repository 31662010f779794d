# %% [markdown]
# # Does a predictive memory help an agent?
#
# This notebook adds controls to Figure 6 of the paper (van den Oord et al. 2018), which `cpc
# reproduce` makes. A falling ball, soon hidden, must be caught. In `seen_again` it reappears as it
# lands, so remembering it predicts an image and CPC can help. In `never_seen` it does not reappear,
# and in `always_visible` no memory is needed. `FULL=1` in the environment trains ten seeds for 1.2
# million frames, which takes more than an hour on two cores, and `FULL=seen_again` only that
# variant (results: `docs/results/agents.md`).

# %%
import itertools
import os
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

sys.path.insert(0, "../..")  # contains configs and experiments
from configs import rl_hidden_ball
from cpc.results import Difference
from cpc.rl import ball_information
from experiments.command.config import with_settings
from experiments.kinds.rl import evaluate, step
from experiments.reproduce.statistics import EQUAL_RETURN, judge_pair

FULL = os.environ.get("FULL", "")
SEEDS, TUNING_SEEDS = (range(10), range(100, 104)) if FULL else (range(2), range(100, 102))
POINT = 20  # rollouts per point of a curve
CONFIG = rl_hidden_ball.get_config()
POINT_FRAMES = POINT * CONFIG.environment.num * CONFIG.policy.unroll
FRAMES = 1_200_000 if FULL else 3 * POINT_FRAMES
steps = POINT_FRAMES * np.arange(1.0, 1 + FRAMES // POINT_FRAMES)
EXPECTED = {"seen_again": "<", "never_seen": "no gain", "always_visible": "no gain"}
VARIANTS = [v for v in EXPECTED if v == FULL] or (list(EXPECTED) if FULL else ["seen_again"])


# %%
def train(variant, settings, seeds):
    """Train an agent per seed; return its curves (return, gradient norm), config, task, params."""
    settings = {"environment.name": f"hidden_ball:{variant}", "num_env_steps": FRAMES, **settings}
    config = with_settings(CONFIG, {"evaluate.num_steps": 40, **settings})
    task = step.make_task(config)
    states = jax.jit(jax.vmap(task.init))(jnp.array(seeds, jnp.uint32))

    def advance(states):
        states = states._replace(metrics=jax.tree.map(jnp.zeros_like, states.metrics))
        launch = lambda states, _: (jax.vmap(task.launch)(states), None)  # noqa: E731
        return jax.lax.scan(launch, states, length=POINT)[0]

    advance, returns, norms = jax.jit(advance, donate_argnums=0), [], []
    for _ in steps:
        states = advance(states)
        sums = jax.device_get(states.metrics)
        returns.append(sums["episode_return"] / sums["episodes"])
        norms.append(sums["gradient_norm"] / sums["steps"])
    assert (np.asarray(states.failure)[:, 0] < 0).all(), "a loss is not finite"
    assert np.isfinite(returns).all(), "no episode ended between two points"
    return np.stack(returns, axis=1), np.stack(norms, axis=1), (config, task, states.params)


def mean_return(returns):
    """Return the area under learning curves by the trapezoidal rule, divided by its length."""
    return np.trapezoid(returns, steps) / (steps[-1] - steps[0])


# %% [markdown]
# ## Tuning the agent without CPC
# For CPC, the weight, rule and number of environments were chosen among ten settings on four other
# seeds of `seen_again`. The agent without CPC has nine: three learning rates (0.002 in the config)
# by three entropy weights (0.01 in the config), chosen by area under the learning curve.

# %%
tuned, means = {}, {}
if "seen_again" in VARIANTS:
    grid = itertools.product((1e-3, 2e-3, 4e-3), (0.003, 0.01, 0.03)) if FULL else [(4e-3, 0.01)]
    for rate, entropy in grid:
        settings = {"optim.learning_rate": rate, "policy.entropy": entropy}
        returns = train("seen_again", {"cpc.weight": 0.0, **settings}, TUNING_SEEDS)[0]
        means[rate, entropy] = mean_return(returns).mean()
        print(f"rate {rate}, entropy {entropy}: area {means[rate, entropy]:+.3f}", flush=True)
    rate, entropy = max(means, key=means.__getitem__)
    tuned = {"optim.learning_rate": rate, "policy.entropy": entropy}

# %% [markdown]
# ## All arms
# One control predicts targets from another environment, which cost as much but contain nothing
# about the agent's own ball. On `always_visible` there are also CPC with less weight, and agents
# without gradient clipping (the config clips to norm 1). Values are interquartile means over seeds
# with 95 % bootstrap intervals; differences are paired by seed. "Frames to 0" is the median over
# seeds of the frames until the return, averaged over five points, reaches 0; "seeds at 0" counts
# the seeds that reach it. CPC should help only if its memory predicts an image. An expectation of
# no gain holds if the difference is certainly below 0.1; a certain loss is a harm.

# %%
NONE, UNCLIPPED = {"cpc.weight": 0.0}, {"optim.clip_norm": 0.0}
ARMS = {"none": NONE, "CPC": {}}
OWN = {"seen_again": {"none, tuned": NONE | tuned}}
CONTROLS = {}
if FULL:
    OWN["seen_again"]["CPC, tuned"] = tuned
    OWN["always_visible"] = {"CPC, weight 0.03": {"cpc.weight": 0.03}}
    OWN["always_visible"] |= {"none, unclipped": NONE | UNCLIPPED, "CPC, unclipped": UNCLIPPED}
    CONTROLS = {"CPC, other targets": {"cpc.targets": "other"}}
    CONTROLS["CPC, given actions"] = {"cpc.given_actions": True}
jobs = [(variant, *arm) for variant in VARIANTS for arm in ARMS.items()]
jobs += [(variant, *arm) for variant in VARIANTS for arm in OWN.get(variant, {}).items()]
jobs += [(variant, *arm) for arm in CONTROLS.items() for variant in VARIANTS]


def interquartile_mean(values, axis=-1):
    return stats.trim_mean(values, 0.25, axis)


def estimate(values):
    options = {"n_resamples": 2000, "method": "percentile", "random_state": 0}
    interval = stats.bootstrap((values,), interquartile_mean, **options).confidence_interval
    return Difference(float(interquartile_mean(values)), *map(float, interval))


def smooth(returns):
    return pd.DataFrame(returns.T).rolling(5, min_periods=1).mean().to_numpy().T


def describe(variant, arm):
    """Return an arm's row: area, last tenth, frames to 0, differences and verdict."""
    text = "{:+.2f} ({:+.2f} to {:+.2f})".format
    returns, area = curves[variant, arm], areas[variant, arm]
    is_reached = smooth(returns) >= 0
    frames_to_0 = np.where(is_reached.any(1), steps[is_reached.argmax(1)], np.inf)
    row = {"variant": variant, "arm": arm, "area": text(*estimate(area)[:3])}
    row["last tenth"] = text(*estimate(returns[:, -max(1, len(steps) // 10) :].mean(1))[:3])
    row["frames to 0"] = f"{np.median(frames_to_0):,.0f}"
    row["seeds at 0"] = f"{np.isfinite(frames_to_0).sum()} of {len(frames_to_0)}"
    for other in ("none", "none, tuned"):
        if arm != other and (variant, other) in areas:
            row[f"minus {other}"] = text(*estimate(area - areas[variant, other])[:3])
    if arm.startswith("CPC"):
        expected = "no gain" if arm == "CPC, other targets" else EXPECTED[variant]
        difference = estimate(area - areas[variant, "none"])
        row["verdict"] = judge_pair(difference, expected, EQUAL_RETURN)
    return row


curves, areas, rows, bounds, probes = {}, {}, [], {}, []
for variant, arm, settings in jobs:
    curves[variant, arm], norms, (config, task, params) = train(variant, settings, SEEDS)
    areas[variant, arm] = mean_return(curves[variant, arm])
    rows.append({**describe(variant, arm), "gradient norm": f"{norms.mean():.2f}"})
    print(rows[-1], flush=True)
    if variant != "seen_again" or arm not in {*ARMS, "CPC, given actions"}:
        continue
    watch = jax.jit(evaluate.watcher(config, task))
    for i, seed in enumerate(SEEDS):
        rollout = jax.device_get(watch(jax.tree.map(lambda x, i=i: x[i], params), seed))
        if config.cpc.weight:
            bounds.setdefault(arm, []).append(evaluate.TRACKER(rollout.sums).value)
        for score, _ in evaluate.probe_memory(config, rollout):
            row = {"arm": arm, "fact": score.task, "features": score.features}
            probes.append({**row, "accuracy": 100 * score.value})
print(pd.DataFrame(rows).fillna("").to_string(index=False))

# %% [markdown]
# ## Learning curves
# Thin lines are seeds, and thick lines their interquartile means. The return is -0.78 at chance,
# and 1 if the ball is always caught.

# %%
figure, panels = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
for axes, variant in zip(panels, VARIANTS, strict=False):
    for color, arm in zip(("0.6", "C0", "C1", "C2"), {**ARMS, **CONTROLS}, strict=False):
        one = smooth(curves[variant, arm]).T
        axes.plot(steps, one, color=color, linewidth=0.3)
        axes.plot(steps, interquartile_mean(one), color=color, label=arm)
    axes.set(ylim=(-1, 1), title=variant, xlabel="frames", ylabel="return")
panels[0].legend(loc="lower right", fontsize="small")

# %% [markdown]
# ## Information and memory on `seen_again`
# The first table has log N - L against 255 other environments, and the information of the past
# about the ball, by enumeration (the paddle, which the agent moves, adds to it). The second has the
# accuracy of linear probes of the memory while the ball is hidden, in percent.

# %%
if probes:
    table = pd.DataFrame({arm: np.mean(values, axis=0) for arm, values in bounds.items()})
    table.index = pd.Index(1 + np.arange(len(table)), name="offset")
    table["the ball"] = [ball_information("seen_again", int(k)) for k in table.index]
    print(table.T.round(2).to_string())
    print(pd.DataFrame(probes).pivot_table("accuracy", ["arm", "fact"], "features").round(1))
