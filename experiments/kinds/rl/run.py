"""Training, evaluation and report page of an agent."""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from configs.rl import KEYS
from cpc import report
from cpc.estimators import Tracker
from cpc.files import write_arrays
from cpc.results import print_scores, write_scores
from cpc.train import Cadence, ProgressWriter, TrainState, describe_values, jit_step, replicate
from experiments.command.config import Config, check_config
from experiments.kinds.rl import evaluate, step
from experiments.training.loop import Training, run_training
from experiments.training.problem import Work
from experiments.training.records import describe_offsets

#: The function returned by `evaluate.watcher`.
Watch: TypeAlias = Callable[[Any, Any], evaluate.Watched]
ON_ONE_DEVICE = True


def interpret(kind: Any, config: Config, mesh: Any = None, workdir: Any = None) -> Config:
    """Validate a config and return it unchanged."""
    check_config(config, KEYS)
    step.make_task(config)
    return config


def load_data(config: Config, log: Callable[[str], object]) -> None:
    """Return None, since the environment generates the data."""


def make_work(
    kind: Any, config: Config, data: None, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> Work:
    """Return functions that train and evaluate an agent and write its report page."""
    task = step.make_task(config)
    watch = jax.jit(evaluate.watcher(config, task))

    words = evaluate.WORDS if config.cpc.weight else evaluate.WORDS._replace(features=())

    def write_page(folder: pathlib.Path) -> pathlib.Path:
        from experiments.kinds.rl import page  # slow: it imports matplotlib

        return report.write_report(folder, words, (page.agent_section,))

    return Work(
        lambda: train(config, task, watch, folder, mesh),
        functools.partial(finish, config, watch, folder),
        write_page,
        lambda folder: report.closing_lines(folder, words),
    )


def train(
    config: Config, task: step.Task, watch: Watch, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> tuple[str, TrainState]:
    """Train until the last step or a signal, and return the reason for stopping and the state."""
    per_launch = task.steps_per_launch
    state = replicate(jax.jit(task.init)(jnp.uint32(config.seed)), mesh)
    size = config.environment.num * config.policy.unroll / per_launch / 1e3, "k frames"
    num_steps = task.num_launches * per_launch

    def at_end(state):
        if not config.evaluate.num_steps:
            return []
        return evaluate.describe(config, jax.device_get(watch(state.params, config.seed)))

    log_every, save_every = config.log_rollouts * per_launch, config.save_rollouts * per_launch
    training = Training(
        state,
        jit_step(task.launch, state),
        lambda first: iter(lambda: 0, 1),  # launches take no batch
        num_steps=num_steps,
        per_step=size,
        summarize=make_summary(config, task),
        evaluate=at_end,
        cadence=Cadence(log_every, save_every=save_every, steps_per_launch=per_launch),
    )
    console = ProgressWriter(num_steps, describe_values("return", "nats", "entropy"), size)
    state, reason = run_training(folder, config, training, console)
    return reason, state


def make_summary(
    config: Config, task: step.Task
) -> Callable[[Mapping[str, Any], int], dict[str, Any]]:
    """Return a function that converts metric sums over some steps into a log record."""
    # First steps of episodes are never positives, so log N - L is an estimate, not a bound.
    tracker = Tracker(False, config.cpc.rule)
    per_step = config.environment.num * config.policy.unroll / task.steps_per_launch

    def summarize(sums, step):
        num = float(sums["steps"]) or math.nan
        episodes = float(sums["episodes"])
        names = ("loss", "policy_loss", "value_loss", "entropy", "gradient_norm")
        record = {name: float(sums[name]) / num for name in names}
        record |= {"frames": step * per_step, "learning_rate": float(task.schedule(step - 1))}
        if episodes:
            record["return"] = float(sums["episode_return"]) / episodes
            record["episode_length"] = float(sums["episode_length"]) / episodes
        if "offsets" in sums:
            offsets = range(1, config.cpc.num_offsets + 1)
            record |= describe_offsets(tracker, tracker(sums["offsets"]), offsets)
        return record

    return summarize


def finish(config: Config, watch: Watch, folder: pathlib.Path, state: TrainState) -> None:
    """Write the scores of memory probes, and an episode for the report page."""
    if not config.evaluate.num_steps:
        return
    watched = jax.device_get(watch(state.params, config.seed))
    probes = list(evaluate.probe_memory(config, watched))
    scores = [score._replace(step=int(state.step)) for score, _ in probes]
    write_scores(folder, scores)
    print_scores(scores)
    half = evaluate.NUM // 2  # probes were fitted on the first half
    rollout = jax.tree.map(lambda x: np.asarray(x)[:, half:], watched.rollout)
    ends = np.cumsum(rollout.is_last, 0) - rollout.is_last
    whole = np.flatnonzero(ends[-1] > 1)  # episode 0 began before the rollout
    if not whole.size:
        return
    column = int(whole[0])
    rows = ends[:, column] == 1
    names = ("observation", "action", "reward")
    arrays = {name: getattr(rollout, name)[rows, column] for name in names}
    for score, log_probs in probes:
        if score.features == "c":
            arrays[f"belief_{score.task}"] = np.exp(log_probs[:, half:][rows, column])
            arrays[f"fact_{score.task}"] = rollout.facts[score.task][rows, column]
    write_arrays(folder / "episode.npz", **arrays)
