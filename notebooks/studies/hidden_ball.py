# %% [markdown]
# # Does a memory that must predict help an agent?
#
# Controls for Figure 6 of the paper (van den Oord et al. 2018), which `cpc reproduce` makes. Catch
# with a ball that hides, and is seen again as it lands (its memory predicts a picture: CPC can
# help), is never seen again (it predicts none), or is always visible (no memory is needed). A2C
# alone, with CPC, with CPC whose targets are of another environment (as much to compute, nothing to
# know), and with CPC given the actions between. All seeds train in one program. `FULL=1` in the
# environment is 400,000 frames and ten seeds, about half an hour on two cores (`docs/rl.md`).

# %%
import os
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

sys.path.insert(0, "../..")  # where configs and experiments are
from configs import rl_hidden_ball
from cpc.evaluate import area_under_curve, interquartile_mean, stratified_interval
from cpc.results import Difference
from cpc.rl import ball_information
from experiments.command.config import with_settings
from experiments.kinds.rl import evaluate, step
from experiments.reproduce.statistics import EQUAL_RETURN, judge_pair

FULL = bool(os.environ.get("FULL"))
SEEDS, FRAMES = (range(10), 400_000) if FULL else (range(2), 20_000)
POINT = 20  # rollouts from one point of a curve to the next
ARMS = {"none": {"cpc.weight": 0.0}, "CPC": {}}
if FULL:
    ARMS["CPC, other targets"] = {"cpc.targets": "other"}
    ARMS["CPC, given actions"] = {"cpc.given_actions": True}
EXPECTED = {"seen_again": "helps", "never_seen": "no gain", "always_visible": "no gain"}
VARIANTS = tuple(EXPECTED) if FULL else ("seen_again",)

# %% [markdown]
# ## Training and watching
# A strict evaluation against other environments gives log N - L by offset, and linear probes read
# off the memory what is hidden.


# %%
def train(config):
    """Train an agent per seed; return its return at each point of its curve, and its weights."""
    task = step.make_task(config)
    states = jax.jit(jax.vmap(task.init))(jnp.array(SEEDS, jnp.uint32))

    def advance(states):
        states = states._replace(metrics=jax.tree.map(jnp.zeros_like, states.metrics))
        launch = lambda states, _: (jax.vmap(task.launch)(states), None)  # noqa: E731
        return jax.lax.scan(launch, states, length=POINT)[0]

    advance, returns = jax.jit(advance, donate_argnums=0), []
    for _ in range(task.num_launches // POINT):
        states = advance(states)
        sums = jax.device_get(states.metrics)
        returns.append(sums["episode_return"] / sums["episodes"])
    assert (np.asarray(states.failure)[:, 0] < 0).all(), "a loss is not finite"
    return task, np.stack(returns, axis=1), states.params


curves, bounds, probes = {}, {}, []
for variant in VARIANTS:
    for arm, given in ARMS.items():
        given = {"environment.name": f"hidden_ball:{variant}", "num_env_steps": FRAMES, **given}
        config = with_settings(rl_hidden_ball.get_config(), {"evaluate.num_steps": 40, **given})
        task, curves[variant, arm], params = train(config)
        frames = POINT * config.environment.num * config.policy.unroll
        frames *= np.arange(1.0, 1 + curves[variant, arm].shape[1])
        watch = jax.jit(evaluate.watcher(config, task))
        for i, seed in enumerate(SEEDS):
            watched = jax.device_get(watch(jax.tree.map(lambda x, i=i: x[i], params), seed))
            if config.cpc.weight:
                track = evaluate.TRACKER(watched.sums)
                bounds.setdefault((variant, arm), []).append(track.value)
            for score, _ in evaluate.probe_memory(config, watched):
                of = {"variant": variant, "arm": arm, "fact": score.task}
                probes.append({**of, "features": score.features, "accuracy": score.value})

# %% [markdown]
# ## Learning
# Thin lines are seeds, thick ones their interquartile mean. Chance is -0.78; a policy that always
# catches the ball has 1.

# %%
figure, panels = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
for axes, variant in zip(panels, VARIANTS, strict=False):
    for color, arm in zip(("0.6", "C0", "C1", "C2"), ARMS, strict=False):
        one = pd.DataFrame(curves[variant, arm].T).rolling(5, min_periods=1).mean().to_numpy()
        axes.plot(frames, one, color=color, linewidth=0.3)
        axes.plot(frames, interquartile_mean(one[..., None]), color=color, label=arm)
    axes.set(ylim=(-1, 1), title=variant, xlabel="frames", ylabel="return")
panels[0].legend()

# %% [markdown]
# Area under the curve and its last tenth: interquartile means over seeds, with 95 % bootstrap
# intervals, and differences from none, paired by seed. Expected: CPC helps where its memory
# predicts a picture and makes no difference elsewhere; with targets of others it never helps. An
# expectation of no gain holds if the difference surely is below 0.1; a sure loss is a harm.


# %%
def estimate(values):
    low, high = stratified_interval(interquartile_mean, values[:, None])
    return float(interquartile_mean(values[:, None])), float(low), float(high)


rows, shown = [], "{:+.2f} ({:+.2f} to {:+.2f})".format
area = {key: np.asarray(area_under_curve(frames, one)) for key, one in curves.items()}
for (variant, arm), one in curves.items():
    last = one[:, -max(1, one.shape[1] // 10) :].mean(1)
    row = {"variant": variant, "arm": arm, "area": shown(*estimate(area[variant, arm]))}
    row["last tenth"] = shown(*estimate(last))
    if arm != "none":
        value, low, high = estimate(area[variant, arm] - area[variant, "none"])
        row["over none"] = shown(value, low, high)
        row["expected"] = "no gain" if arm == "CPC, other targets" else EXPECTED[variant]
        relation = "<" if row["expected"] == "helps" else "no gain"
        row["verdict"] = judge_pair(Difference(value, low, high), relation, EQUAL_RETURN)
    rows.append(row)
print(pd.DataFrame(rows).fillna("").to_string(index=False))

# %% [markdown]
# ## Information and memory
# log N - L against 255 other environments, next to what the past tells about the ball, by
# enumeration (the paddle, which the agent moves, adds to it), and what linear probes read off the
# memory where it cannot be seen, in percent.

# %%
table = pd.DataFrame({" ".join(key): np.mean(values, axis=0) for key, values in bounds.items()})
table.index = pd.Index(1 + np.arange(len(table)), name="offset")
for variant in VARIANTS:
    table[f"{variant}, the ball"] = [ball_information(variant, int(k)) for k in table.index]
print(table.T.round(2).to_string())
frame = pd.DataFrame(probes)
print((100 * frame.pivot_table("accuracy", ["variant", "arm", "fact"], "features")).round(1))
