"""Evaluation of an agent by its return, its bound log N - L and probes of its memory."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from cpc import rl
from cpc.estimators import Tracker
from cpc.evaluate import bootstrap_interval, describe_fit, fit_lbfgs_probe, predict
from cpc.losses import OffsetSums
from cpc.models.agent import AgentInput
from cpc.report import Words
from cpc.results import Score
from experiments.command.config import Config
from experiments.kinds.rl import step as steps
from experiments.training.records import describe_offsets

WORDS = Words(
    examples="environments",
    tested="environments",
    titles={"c": "memory, c", "z": "current observation, z"},
)
#: Number of environments in an evaluation, which is also the number of candidates.
NUM = 256
#: If possible, probes are fitted on a multiple of this number of steps, to limit compilations.
ROWS = 512
L2 = 1e-3
TRACKER = Tracker(True, steps.STRICT.name)


class Watched(NamedTuple):
    """An agent's rollout (t, b), with features and the loss sums of the bound."""

    rollout: rl.Rollout
    features: dict[str, Any]
    """Features (t, b, width) by name: c, z, and c of the untrained agent."""
    sums: OffsetSums
    """Loss sums by prediction offset under the strict negative sampling rule."""


def watcher(config: Config, task: steps.Task) -> Callable[[Any, Any], Watched]:
    """Return watch(params, seed), which records a rollout of the agent, for use in jit and vmap."""
    agent = task.agent

    def watch(params, seed):
        root = jax.random.fold_in(jax.random.key(seed), 3)
        worlds_rng, steps_rng, params_rng = jax.random.split(root, 3)
        memory = agent.begin(NUM)
        environment = task.many(NUM)
        worlds = rl.begin(environment, memory, NUM, worlds_rng, config.environment.stagger)
        act = functools.partial(steps.take_step, agent, params)
        _, rollout = rl.roll_out(environment, act, worlds, steps_rng, config.evaluate.num_steps)
        inputs = AgentInput(rollout.observation, rollout.previous, rollout.is_first)
        out: Any = agent.apply({"params": params}, inputs, memory)
        untrained = agent.init(params_rng, AgentInput(*(x[:1] for x in inputs)), memory)["params"]
        before: Any = agent.apply({"params": untrained}, inputs, memory)
        features = {"c": out.c, "z": out.z, "random c": before.c}
        _, sums = steps.predict(config, agent, params, out.z, out.c, rollout, steps.STRICT)
        return Watched(rollout, features, sums)

    return watch


def describe(config: Config, watched: Watched) -> list[dict[str, Any]]:
    """Return the records of an evaluation: complete episodes' mean return, and log N - L."""
    rollout = watched.rollout
    is_last = np.asarray(rollout.is_last)
    ended = np.cumsum(is_last, axis=0) - is_last
    # Episode 0 began before the rollout. All environments contribute equally many episodes, as
    # otherwise short ones would be overrepresented.
    whole = is_last & (ended > 0) & (ended < is_last.sum(axis=0).min())
    records: list[dict[str, Any]] = []
    if whole.any():
        sums = {"return": rollout.episode_return, "episode_length": rollout.episode_length}
        records.append({k: float((x * whole).sum()) / whole.sum() for k, x in sums.items()})
    else:
        short = f"some environments complete no episode in {len(is_last)} steps"
        print(f"the return is not reported: {short}; raise evaluate.num_steps")
    if config.cpc.weight:
        track, offsets = TRACKER(watched.sums), range(1, config.cpc.num_offsets + 1)
        records.append({"series": "strict", **describe_offsets(TRACKER, track, offsets)})
    return records


def probe_memory(config: Config, watched: Watched) -> Iterator[tuple[Score, np.ndarray]]:
    """Yield each linear probe's score and log-probabilities (t, b, classes), by fact and feature.

    Facts are hidden from the agent. Probes are fitted on half of the environments and tested on the
    other half.
    """
    for name, values in watched.rollout.facts.items():
        values = np.asarray(values)
        counts = values >= 0
        if not counts[:, : NUM // 2].any() or not counts[:, NUM // 2 :].any():
            continue
        labels = np.maximum(values, 0)
        num_classes = int(labels.max()) + 1
        is_first_half = np.arange(NUM) < NUM // 2
        fitted, tested = counts & is_first_half, counts & ~is_first_half
        chosen = np.flatnonzero(fitted)
        chosen = chosen[: max(len(chosen) // ROWS, 1) * ROWS]
        chance = np.bincount(labels[tested]).max() / tested.sum()
        for features, x in watched.features.items():
            x = np.asarray(x, np.float32)
            x = x.reshape(-1, x.shape[-1])
            probe = fit_lbfgs_probe(
                x[chosen], labels.ravel()[chosen], num_classes=num_classes, l2s=(L2,)
            )
            log_probs = predict(probe, x).reshape(*labels.shape, -1)
            right = (log_probs.argmax(-1) == labels) & tested
            own = tested.sum(0) > 0
            low, high = bootstrap_interval(right.sum(0)[own] * 1.0, tested.sum(0)[own])
            score = Score(
                name, config.environment.name, "step", features, "linear", "accuracy",
                float(right.sum() / tested.sum()), low, high, float(chance), seed=config.seed,
                num_train=len(chosen), num_test=int(tested.sum()), setting=describe_fit(probe),
            )  # fmt: skip
            yield score, log_probs
