"""What an experiment's command does with its problem: audit, train, probe, share, report."""

import importlib.util
import json
import pathlib
from typing import Any

import jax

from cpc import models, report
from cpc.train import run_on_first
from experiments import launch, training
from experiments.audit import audit_run
from experiments.launch import Config
from experiments.share import describe, share
from experiments.training import Problem


def run_problem(
    config: Config,
    workdir: pathlib.Path,
    problem: Problem,
    mesh: jax.sharding.Mesh,
    only_audit: bool = False,
) -> None:
    """From an open run directory to its report; stopped by a signal, say how to resume."""
    audit_run(config, workdir, problem)
    if only_audit:
        return
    reason, variables = training.train(config, workdir, problem, mesh)
    if reason:
        print(f"stopped by {reason}; to resume: {launch.command_line()}")
        return
    run_on_first(finish, config, workdir, problem, variables)


def finish(config: Config, workdir: pathlib.Path, problem: Problem, variables: Any) -> None:
    """Probes, the model as `cpc.models.load` reads it, and the report."""
    try:
        probe_once(config, workdir, problem, variables)
        if importlib.util.find_spec("safetensors"):  # optional: without it, nothing is shared
            recorded = launch.read_config(workdir)
            last = describe(recorded, workdir, problem.model, variables, config.num_steps)
            share(workdir, workdir / models.EXPORTED, last)
    finally:  # a probe that fails does not hide the training
        print(f"report: {report.write_report(workdir)}")


def probe_once(config: Config, workdir: pathlib.Path, problem: Problem, variables) -> None:
    """Fit the probes of the last step, unless a start before this one has, by the same config."""
    wanted = {"step": config.num_steps, "probe": json.loads(config.probe.to_json())}
    stamp = workdir / "probes" / "done.json"
    if config.probe.tasks and not (stamp.exists() and launch.read_json(stamp) == wanted):
        problem.probe(variables, config.num_steps)
        launch.write_json(stamp, wanted)
