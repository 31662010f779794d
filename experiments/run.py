"""What the command of every modality does: check, audit, train, probe, export, report."""

import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import flags

from cpc import models, report
from cpc.files import plain, write_sealed
from cpc.train import check_batch_size, run_on_first
from cpc.types import UserError
from experiments import status, training
from experiments.audit import audit_run
from experiments.command import cli, cluster
from experiments.command.config import Config, check_config, check_every, with_settings
from experiments.command.keys import print_keys
from experiments.command.run_dir import check_same_data, open_run, write_skipped
from experiments.memory import check_memory, check_sizes
from experiments.model_card import describe, share
from experiments.plan import Plan, make_plan
from experiments.problem import Modality, Probe, Problem
from experiments.status import PROBED, was_probed

#: Keys of `probe` that say what is fitted, and not how.
ASKED = ("tasks", "features")


def main(modality: Modality, others: Mapping[str, Callable[..., None]] | None = None) -> None:
    """Be the command of a modality.

    Args:
        modality: what configs are of.
        others: run(config, workdir, device) of other kinds of config that the command takes.
    """
    print_keys(modality.keys)
    config = cli.define_config()
    audit = flags.DEFINE_bool(
        "audit", False, "Only audit the negatives of the config: do not train."
    )

    def start() -> None:
        other = (others or {}).get(config.value.get("kind")) if config.value else None
        if other:
            other(config.value, cli.WORKDIR.value, cli.DEVICE.value)
        else:
            run(modality, config.value, cli.WORKDIR.value, cli.DEVICE.value, audit.value)

    cli.run(start)


def run(
    modality: Modality,
    config: Config,
    workdir: str | None,
    device: str = "auto",
    only_audit: bool = False,
) -> None:
    """Check the config, read the data, and run the problem that they make."""
    if config is None:
        raise UserError("--config is required, e.g. --config audio_voices")
    if config.get("kind") != modality.name:
        raise UserError(
            f"the config is of kind {config.get('kind')!r}, not {modality.name}: "
            f"run cpc {config.get('kind')}, or pass another --config"
        )
    check_config(config, modality.keys)
    training.check_logger(config)
    mesh = cluster.start(device, config, workdir)
    check_batch_size(config.data.batch_size, mesh)
    plan = plan_run(modality, config, mesh.size)
    check_memory(plan, mesh)
    check_sizes(plan, mesh, modality.describe_input(config)["shape"])
    with open_run(workdir, config, modality.keys, mesh) as folder:
        data = cluster.load_in_turn(lambda: modality.load_data(config, print))
        check_same_data(folder, data, modality.identify)
        write_skipped(folder, modality.skipped(data))
        problem = modality.make_problem(plan, data)
        run_on_first(modality.record, config, folder, data)

        def make_probe(config: Config) -> Probe:
            return modality.make_probe(config, folder, data, problem.model)

        run_problem(modality, config, folder, problem, make_probe, mesh, only_audit)


def plan_run(modality: Modality, config: Config, num_devices: int = 1) -> Plan:
    """Interpret a config and check all of it that needs no data.

    Raises:
        UserError: a value is impossible, or values do not go together.
    """
    check_config(config, modality.keys)
    check_every(config)
    modality.check(config)
    plan = make_plan(config, modality.geometry(config))
    optim = config.optim
    if optim.warmup_steps > config.num_steps:
        raise UserError(
            f"optim.warmup_steps is {optim.warmup_steps}, but the run has {config.num_steps} "
            f"steps: for so short a run add --config.optim.warmup_steps={config.num_steps // 10}"
        )
    training.check_step(config, num_devices)
    return plan


def run_problem(
    modality: Modality,
    config: Config,
    workdir: pathlib.Path,
    problem: Problem,
    make_probe: Callable[[Config], Probe],
    mesh: jax.sharding.Mesh,
    only_audit: bool,
) -> None:
    """From an open run directory to its report; stopped by a signal, say how to resume."""
    probe = make_probe(config)
    audit_run(workdir, problem, only_audit)
    if only_audit:
        return
    reason, variables = training.train(workdir, problem, probe, mesh)
    if reason:
        print(f"stopped by {reason}; to resume: {cli.command_line()}")
        return
    run_on_first(finish, modality, config, workdir, problem, make_probe, variables)


def finish(
    modality: Modality,
    config: Config,
    workdir: pathlib.Path,
    problem: Problem,
    make_probe: Callable[[Config], Probe],
    variables: Any,
) -> None:
    """Probes, the model as `cpc.models.load` reads it, and the report."""
    try:
        probe_once(config, workdir, make_probe, variables)
        last = describe(modality, workdir, config, problem.model, variables, config.num_steps)
        share(modality, workdir, workdir / models.EXPORTED, last)
    finally:  # a probe that fails does not hide the training
        path = write_page(modality, workdir)
        print(*report.closing_lines(workdir, modality.words), f"report: {path}", sep="\n")


def write_page(modality: Modality, workdir: pathlib.Path) -> pathlib.Path:
    """Write the page of a run, with what its kind of data has."""
    return report.write_report(workdir, modality.words, modality.sections)


def probe_once(
    config: Config,
    workdir: pathlib.Path,
    make_probe: Callable[[Config], Probe],
    variables: Any,
) -> None:
    """Fit the probes of the last step that no start has fitted, or whose scores were replaced."""
    stamp, left = status.read(workdir / PROBED), unfitted(config, workdir)
    if left.probe.tasks:
        scores = make_probe(left)(variables, config.num_steps)
        before = stamp.get("data", []) if stamp.get("step") == config.num_steps else []
        data = sorted({score.data for score in scores or ()} | {*before})
        probed = {"step": config.num_steps, "probe": plain(config.probe), "data": data}
        write_sealed(workdir / PROBED, probed)


def unfitted(config: Config, workdir: pathlib.Path) -> Config:
    """Return a config with the probe tasks and features of the last step that are not fitted."""
    stamp, probe = status.read(workdir / PROBED), config.probe
    if not was_probed(workdir, config.num_steps) or options(stamp.get("probe")) != options(probe):
        return config
    replaced = {(task, feature) for task, feature in stamp.get("replaced", ())}
    fitted = {*itertools.product(*(stamp["probe"][name] for name in ASKED))} - replaced
    left = {*itertools.product(*(probe[name] for name in ASKED))} - fitted
    kept = {
        f"probe.{name}": tuple(one for one in probe[name] if one in {pair[i] for pair in left})
        for i, name in enumerate(ASKED)
    }
    return with_settings(config, kept)


def options(probe: Any) -> dict[str, Any] | None:
    """Return the options by which probes are fitted: a task is asked of each feature by itself."""
    return None if probe is None else {**plain(probe), **dict.fromkeys(ASKED, ())}


def check_places(modality: Modality, own: Config, config: Config) -> bool:
    """Return whether a run is to be probed on its own data, which may have been moved.

    Raises:
        UserError: these are others, of a name under which the run's own scores are kept.
    """
    is_own, before = plain(config.data) == plain(own.data), modality.places(own)
    for name, given in modality.places(config).items():
        now, then = (
            [pathlib.Path(path).expanduser().resolve() for path in paths if path]
            for paths in (given, before.get(name, given))
        )
        if now == then:
            continue
        others = [own for new, own in zip(now, then, strict=False) if new != own]
        if len(now) != len(then) or any(path.exists() for path in others):
            raise UserError(
                f"{' of '.join(map(str, now)) or f'data.source={name}'} is called {name}, as the "
                f"run's own {' of '.join(map(str, then)) or 'data'}, whose scores would be "
                "replaced: give one of them another name"
            )
        is_own = True
    return is_own


def probe_aside(
    config: Config, own: Config, workdir: pathlib.Path, probe: Probe, variables: Any, step: int
) -> None:
    """Fit probes by a config other than the run's own, whose command fits anew what they replace.

    Scores of other tasks, or of data of another name, stand beside those of the run.
    """
    path = workdir / PROBED
    stamp = status.read(path)
    is_changed = options(own.probe) != options(config.probe) or plain(own.data) != plain(
        config.data
    )
    if stamp and step == own.num_steps and is_changed:  # before: a stop leaves some of them
        pairs = itertools.product(*(config.probe[name] for name in ASKED))
        replaced = sorted({*map(tuple, stamp.get("replaced", ())), *pairs})
        write_sealed(path, {**stamp, "replaced": replaced})
    scores = probe(variables, step)
    if stamp.get("data") and not {*stamp["data"]} & {score.data for score in scores}:
        write_sealed(path, stamp)
