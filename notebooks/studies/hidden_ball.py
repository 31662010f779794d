# %% [markdown]
# # Does a memory that must predict help an agent?
#
# Controls for Figure 6 of the paper (van den Oord et al. 2018), which `cpc reproduce` makes. Catch
# with a ball that hides and is seen again as it lands (its memory predicts an image: CPC can help),
# is never seen again (it predicts none), or is always visible (no memory is needed). `FULL=1` in
# the environment trains ten seeds for 1.2 million frames, which takes more than an hour on two
# cores; `FULL=seen_again`, or another variant, trains only this one. Results: `docs/rl.md`.

# %%
import itertools
import os
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

sys.path.insert(0, "../..")  # where configs and experiments are
from configs import rl_hidden_ball
from cpc.evaluate import area_under_curve, interquartile_mean, steps_to_level, stratified_interval
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
def train(variant, given, seeds):
    """Train an agent per seed; return curves of return and gradient norm, config, task, weights."""
    given = {"environment.name": f"hidden_ball:{variant}", "num_env_steps": FRAMES, **given}
    config = with_settings(CONFIG, {"evaluate.num_steps": 40, **given})
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
    return np.stack(returns, axis=1), np.stack(norms, axis=1), (config, task, states.params)


# %% [markdown]
# ## Tuning the agent alone
# Weight, rule and number of environments of CPC were chosen among ten settings on four other seeds
# of `seen_again`. The agent alone has nine: the largest area under the curve among three learning
# rates (the config has 0.002) and three entropy weights (0.01).

# %%
tuned, means = {}, {}
if "seen_again" in VARIANTS:
    grid = itertools.product((1e-3, 2e-3, 4e-3), (0.003, 0.01, 0.03)) if FULL else [(4e-3, 0.01)]
    for rate, entropy in grid:
        given = {"optim.learning_rate": rate, "policy.entropy": entropy}
        returns = train("seen_again", {"cpc.weight": 0.0, **given}, TUNING_SEEDS)[0]
        means[rate, entropy] = area_under_curve(steps, returns).mean()
        print(f"rate {rate}, entropy {entropy}: area {means[rate, entropy]:+.3f}", flush=True)
    rate, entropy = max(means, key=means.__getitem__)
    tuned = {"optim.learning_rate": rate, "policy.entropy": entropy}

# %% [markdown]
# ## All arms
# As controls, targets from another environment cost as much and contain nothing about the own ball.
# On `always_visible`, CPC with less weight, and without gradient clipping (to norm 1 in the
# config). Intervals are 95 % bootstrap intervals of interquartile means over seeds; differences are
# paired by seed. Frames to a return of 0, averaged over five points: the median over all seeds,
# with the number of seeds that reach it. CPC is expected to help where its memory predicts an
# image. An expectation of no gain holds if the difference is surely below 0.1; a sure loss is a
# harm. A strict evaluation against other environments gives log N - L by offset, and linear probes
# read the hidden state from the memory.

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


def estimate(values):
    low, high = stratified_interval(interquartile_mean, values[:, None])
    return Difference(float(interquartile_mean(values[:, None])), float(low), float(high))


def smooth(returns):
    return pd.DataFrame(returns.T).rolling(5, min_periods=1).mean().to_numpy().T


def describe(variant, arm):
    """Return the row of an arm: area, last tenth, frames to 0, and differences with a verdict."""
    text = "{:+.2f} ({:+.2f} to {:+.2f})".format
    returns, area = curves[variant, arm], areas[variant, arm]
    reached = steps_to_level(steps, smooth(returns), 0.0)
    row = {"variant": variant, "arm": arm, "area": text(*estimate(area)[:3])}
    row["last tenth"] = text(*estimate(returns[:, -max(1, len(steps) // 10) :].mean(1))[:3])
    row["frames to 0"] = f"{np.median(np.nan_to_num(reached, nan=np.inf)):,.0f}"
    row["seeds at 0"] = f"{np.isfinite(reached).sum()} of {len(reached)}"
    for other in ("none", "none, tuned"):
        if arm != other and (variant, other) in areas:
            row[f"over {other}"] = text(*estimate(area - areas[variant, other])[:3])
    if arm.startswith("CPC"):
        expected = "no gain" if arm == "CPC, other targets" else EXPECTED[variant]
        over = estimate(area - areas[variant, "none"])
        row["verdict"] = judge_pair(over, expected, EQUAL_RETURN)
    return row


curves, areas, rows, bounds, probes = {}, {}, [], {}, []
for variant, arm, given in jobs:
    curves[variant, arm], norms, (config, task, params) = train(variant, given, SEEDS)
    areas[variant, arm] = np.asarray(area_under_curve(steps, curves[variant, arm]))
    rows.append({**describe(variant, arm), "gradient norm": f"{norms.mean():.2f}"})
    print(rows[-1], flush=True)
    if variant != "seen_again" or arm not in {*ARMS, "CPC, given actions"}:
        continue
    watch = jax.jit(evaluate.watcher(config, task))
    for i, seed in enumerate(SEEDS):
        watched = jax.device_get(watch(jax.tree.map(lambda x, i=i: x[i], params), seed))
        if config.cpc.weight:
            bounds.setdefault(arm, []).append(evaluate.TRACKER(watched.sums).value)
        for score, _ in evaluate.probe_memory(config, watched):
            of = {"arm": arm, "fact": score.task, "features": score.features}
            probes.append({**of, "accuracy": 100 * score.value})
print(pd.DataFrame(rows).fillna("").to_string(index=False))

# %% [markdown]
# ## Learning curves
# Thin lines are seeds, thick lines their interquartile mean. Chance is -0.78; a policy that always
# catches the ball has 1.

# %%
figure, panels = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
for axes, variant in zip(panels, VARIANTS, strict=False):
    for color, arm in zip(("0.6", "C0", "C1", "C2"), {**ARMS, **CONTROLS}, strict=False):
        one = smooth(curves[variant, arm]).T
        axes.plot(steps, one, color=color, linewidth=0.3)
        axes.plot(steps, interquartile_mean(one[..., None]), color=color, label=arm)
    axes.set(ylim=(-1, 1), title=variant, xlabel="frames", ylabel="return")
panels[0].legend(loc="lower right", fontsize="small")

# %% [markdown]
# ## Information and memory on `seen_again`
# log N - L against 255 other environments, next to the information that the past has about the
# ball, by enumeration (the paddle, which the agent moves, adds to it), and linear probe accuracy
# of the memory while the ball is hidden, in percent.

# %%
if probes:
    table = pd.DataFrame({arm: np.mean(values, axis=0) for arm, values in bounds.items()})
    table.index = pd.Index(1 + np.arange(len(table)), name="offset")
    table["the ball"] = [ball_information("seen_again", int(k)) for k in table.index]
    print(table.T.round(2).to_string())
    print(pd.DataFrame(probes).pivot_table("accuracy", ["arm", "fact"], "features").round(1))
