"""Pipeline of the contrastive kinds, from plan and audit to training, probes, export and card."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from configs.defaults import PARTS
from cpc import models, report
from cpc.files import plain, write_sealed, write_text
from cpc.report.engine import Section, Table, markdown
from cpc.results import QUESTION, Run, Score, last_scores, read_run, with_unit
from cpc.results.run import headline_rows, offset_ranges
from cpc.train import check_batch_size, run_on_first, wait_for_all
from cpc.types import UserError
from experiments import status
from experiments.command.config import Config, check_config, with_settings
from experiments.status import PROBE_STAMP, was_probed
from experiments.training import step as training
from experiments.training import weights
from experiments.training.audit import audit_run
from experiments.training.checks import reject
from experiments.training.plan import Plan, make_plan
from experiments.training.probes import ProbeContext, run_probes, scratch_checkpoints
from experiments.training.problem import Contrastive, Probe, Problem, Work

ON_ONE_DEVICE = False
#: Keys of `probe` that choose probes; its other keys are options for fitting them.
PROBE_KEYS = ("tasks", "features")


def interpret(
    kind: Contrastive,
    config: Config,
    mesh: jax.sharding.Mesh | None = None,
    workdir: str | None = None,
) -> Plan:
    """Return the plan of a config, validated as far as possible without data.

    For training, with a mesh, the plan contains the weights to start from, unless there are
    checkpoints in `workdir`.
    """
    check_config(config, kind.KEYS)
    plan = make_plan(config, kind.geometry(config))
    optim, every, batch_size = config.optim, config.probe.every, config.data.batch_size
    num_devices = 1 if mesh is None else mesh.size
    if mesh is not None:
        check_batch_size(batch_size, mesh)
    reject(config,
        (every and (not config.eval_every or every % config.eval_every), "probe.every eval_every",
         "probes are fitted at evaluations; set probe.every to a multiple of eval_every, or 0"),
        (optim.warmup_steps > config.num_steps, "optim.warmup_steps num_steps",
         "the warm-up is longer than the run; add "
         f"--config.optim.warmup_steps={config.num_steps // 10}"),
        (batch_size % (optim.accumulate * num_devices), "optim.accumulate data.batch_size",
         f"the batch does not divide evenly into these parts on {num_devices} devices; choose "
         "another optim.accumulate or data.batch_size"),
        (optim.name == "schedule_free" and optim.ema_decay, "optim.name optim.ema_decay",
         "this optimizer already averages parameters; set optim.ema_decay to 0 or choose "
         "another optim.name"),
        ({*config.freeze} >= {*PARTS}, "freeze",
         "no part is left to train; remove a part"),
        (not config.start_from and (config.start_from_step or config.start_from_parts),
         "start_from start_from_step start_from_parts", "set start_from to weights"),
        (config.start_from_parts and {*config.freeze} - {*config.start_from_parts},
         "freeze start_from_parts", "a frozen part would keep random weights; add it to "
         "start_from_parts"),
    )  # fmt: skip
    training.optimizer_of(config)
    training.cadence_of(config).check_multiples({"num_steps": config.num_steps})
    start = None if mesh is None else weights.read_start(kind, config, workdir)
    return dataclasses.replace(plan, start=start)


def make_work(
    kind: Contrastive, plan: Plan, data: Any, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> Work:
    """Return functions for the steps of a run: audit, training, final probes, export and page."""
    config, problem = plan.config, kind.make_problem(plan, data)
    run_on_first(problem.record, folder)
    problem = with_start(kind, plan, problem, folder)

    build_probe = functools.partial(
        make_probe, kind, workdir=folder, data=data, model=problem.model
    )
    probe = build_probe(config)

    def train() -> tuple[str, Any]:
        audit_run(folder, problem, False)
        return training.train(folder, problem, probe, mesh)

    def finish(variables: Any) -> None:
        probe_once(config, folder, build_probe, variables)
        last = weights.describe(kind, folder, config, problem.model, variables, config.num_steps)
        share(kind, folder, folder / models.EXPORTED, last)

    return Work(
        train=train,
        finish=finish,
        write_page=lambda folder: write_page(kind, folder),
        closing_lines=lambda folder: report.closing_lines(folder, kind.PAGE.words),
        audit=lambda: audit_run(folder, problem, True),
    )


def with_start(kind: Contrastive, plan: Plan, problem: Problem, folder: pathlib.Path) -> Problem:
    """Let a problem's model start from the weights of the plan, if any, and record them."""
    if plan.start is None:
        return problem
    wait_for_all("start_from", {"start_from": plan.start.record["digest"]})
    run_on_first(weights.record_start, folder, plan.start)
    words = kind.describe_input(plan.config, folder).get("words")
    start = functools.partial(weights.merge, start=plan.start, own_words=words)
    return problem._replace(start=start)


def write_page(kind: Contrastive, workdir: pathlib.Path) -> pathlib.Path:
    """Write the page of a run, including the sections of its kind, and return its path."""
    sections = (start_section, *kind.PAGE.sections)
    return report.write_report(workdir, kind.PAGE.words, sections)


def start_section(run: Run) -> Section | None:
    """Return the page section on the weights that a run started from, or None."""
    sentences = weights.start_sentences(run.workdir)
    return Section("Start", sentences) if sentences else None


def make_probe(
    kind: Contrastive, config: Config, workdir: pathlib.Path, data: Any, model: models.Model
) -> Probe:
    """Return a function that fits the probes of `config.probe` and records their scores."""
    tasks = kind.PROBES.tasks(config, data)

    def probe(variables: Any, step: int) -> list[Score]:
        with scratch_checkpoints(workdir, step) as folder_of:
            context = ProbeContext(config, data, model, variables, workdir, step, folder_of)
            return run_probes(context, tasks, kind.PROBES)

    return probe


def probe_once(
    config: Config, workdir: pathlib.Path, make_probe: Callable[[Config], Probe], variables: Any
) -> None:
    """Fit the probes of the last step, except probes whose recorded scores are still valid."""
    stamp, probe, pending = status.read(workdir / PROBE_STAMP), config.probe, config
    is_same = fit_options(stamp.get("probe")) == fit_options(probe)
    if was_probed(workdir, config.num_steps) and is_same:
        replaced = set(map(tuple, stamp.get("replaced", ())))
        pairs = pairs_of(probe) - (pairs_of(stamp["probe"]) - replaced)
        settings = {
            f"probe.{name}": tuple(one for one in probe[name] if one in {pair[i] for pair in pairs})
            for i, name in enumerate(PROBE_KEYS)
        }
        pending = with_settings(config, settings)
    if pending.probe.tasks:
        scores = make_probe(pending)(variables, config.num_steps)
        before = stamp.get("data", []) if stamp.get("step") == config.num_steps else []
        data = sorted({score.data for score in scores or ()} | {*before})
        probed = {"step": config.num_steps, "probe": plain(config.probe), "data": data}
        write_sealed(workdir / PROBE_STAMP, probed)


def pairs_of(probe: Any) -> set[tuple[str, str]]:
    """Return the pairs (task, feature) of a probe config."""
    return {*itertools.product(probe["tasks"], probe["features"])}


def fit_options(probe: Any) -> dict[str, Any] | None:
    """Return the fitting options of a probe config, without its tasks and features."""
    return None if probe is None else {**plain(probe), **dict.fromkeys(PROBE_KEYS, ())}


def check_data_identity(kind: Contrastive, own: Config, config: Config) -> bool:
    """Return whether `config` probes the data of a run with config `own`.

    The data may have moved to another path since the run. Raises UserError if other data have the
    name of the run's data and would replace their scores.
    """
    data_locations = kind.PROBES.data_locations
    is_own, own_places = plain(config.data) == plain(own.data), data_locations(own)
    for name, given in data_locations(config).items():
        new, old = (
            [pathlib.Path(path).expanduser().resolve() for path in paths if path]
            for paths in (given, own_places.get(name, given))
        )
        if new == old:
            continue
        moved = [before for after, before in zip(new, old, strict=False) if after != before]
        if len(new) != len(old) or any(path.exists() for path in moved):
            other = " of ".join(map(str, new)) or f"data.source={name}"
            scores = f"scores of the run's own {' of '.join(map(str, old)) or 'data'}"
            raise UserError(f"{other} would replace {scores}, also named {name}: rename one")
        is_own = True
    return is_own


def probe_with_config(
    config: Config, own: Config, workdir: pathlib.Path, probe: Probe, variables: Any, step: int
) -> None:
    """Fit probes with a config other than the run's, and mark the scores that they replace.

    The run's own command fits the marked probes again.
    """
    path = workdir / PROBE_STAMP
    stamp = status.read(path)
    is_changed = fit_options(own.probe) != fit_options(config.probe)
    is_changed |= plain(own.data) != plain(config.data)
    if stamp and step == own.num_steps and is_changed:  # before fitting, which may be interrupted
        replaced = sorted({*map(tuple, stamp.get("replaced", ()))} | pairs_of(config.probe))
        write_sealed(path, {**stamp, "replaced": replaced})
    scores = probe(variables, step)
    if stamp.get("data") and not {*stamp["data"]} & {score.data for score in scores}:
        write_sealed(path, stamp)


CARD = "README.md"


def share(
    kind: Contrastive, workdir: pathlib.Path, folder: pathlib.Path, pretrained: models.Pretrained
) -> None:
    """Write an exported model's weights, config and card, or no file if making the card fails."""
    card = write_card(kind, workdir, folder.resolve().name, pretrained)
    models.save(folder, pretrained)
    write_text(folder / CARD, card)


def write_card(
    kind: Contrastive, workdir: pathlib.Path, folder: str, pretrained: models.Pretrained
) -> str:
    """Return the model card, with training data, information bound, scores and a usage example."""
    config, step = pretrained.about["config"], pretrained.about["step"]
    run = read_run(workdir)
    defaults = {name: key.default for name, key in kind.KEYS["data"].items()}
    settings = [
        f"{name} {value}"
        for name, value in config["data"].items()
        if name == "source" or value != defaults.get(name)
    ]
    return f"""# {workdir.resolve().name}

Contrastive predictive coding (van den Oord et al. 2018) of {config["kind"]}: encoder,
context and predictor after {step:,} of {config["num_steps"]:,} steps.

## Data

{"; ".join(settings)}. Batch size {config["data"]["batch_size"]}, seed {config["seed"]}, negative
rule {config["negatives"]["rule"]}, loss {config["loss"]["name"]}.
{" ".join(weights.start_sentences(workdir))}

## Mutual information

{describe_bound(run, step)}

## Scores

{describe_scores(run, step)}

## Use

```python
{kind.PAGE.use.format(folder=folder, **pretrained.input)}
```

`model.safetensors` contains the arrays, and `config.json` the modules with all their fields and
the config of the run. Neither contains code.
"""


def describe_bound(run: Run, step: int) -> str:
    """Return a sentence on the last held-out bound at or before `step`, in nats."""
    rows = run.offsets[(run.offsets.series == "strict") & (run.offsets.step <= step)]
    # Values that were not finite are missing: skip those evaluations.
    bad = rows[rows[["bound", "n", "log_n"]].isna().any(axis=1)].step
    rows = rows[~rows.step.isin(bad)]
    rows = headline_rows(rows[rows.step == rows.step.max()])
    if not len(rows):
        return "No bound was measured on held-out data."
    return (
        f"On held-out data, by InfoNCE against one latent of each independent sequence: at least "
        f"{rows.bound.mean():.2f} nats,\nthe mean over offsets "
        f"{offset_ranges(rows.offset)} (step {rows.step.iloc[0]:,}, N {rows.n.max():.0f}, ceiling "
        f"{rows.log_n.max():.2f} nats)."
    )


def describe_scores(run: Run, step: int) -> str:
    """Return a Markdown table of the last scores at or before `step`."""
    import pandas as pd

    scores = last_scores(run.scores[run.scores.step <= step])
    if not len(scores):
        return "Nothing was measured."
    rows = pd.DataFrame(scores[[*QUESTION]])
    for name in ("value", "low", "high", "chance"):
        rows[name] = list(map(with_unit, scores[name], scores.metric))
    rows["better"] = np.where(scores.higher_is_better, "higher", "lower")
    rows["step"] = scores.step
    return markdown(Table("", rows)).rstrip()
