"""The run of every contrastive kind: its plan, its audit, training, probes, export and card."""

import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cpc import models, report
from cpc.files import flatten, plain, write_sealed, write_text
from cpc.report.engine import Table, markdown
from cpc.results import QUESTION, Run, Score, last_scores, read_run, with_unit
from cpc.results.run import headline_rows, offset_ranges
from cpc.train import check_batch_size, run_on_first
from cpc.types import UserError
from experiments import status
from experiments.command.config import Config, check_config, with_settings
from experiments.status import PROBED, was_probed
from experiments.training import step as training
from experiments.training.audit import audit_run
from experiments.training.checks import reject
from experiments.training.plan import Plan, make_plan
from experiments.training.probes import ProbeContext, kept_until_done, run_probes
from experiments.training.problem import Contrastive, Probe, Work

ON_ONE_DEVICE = False
#: Keys of `probe` that say what is fitted, and not how.
ASKED = ("tasks", "features")


def interpret(kind: Contrastive, config: Config, mesh: jax.sharding.Mesh | None = None) -> Plan:
    """Interpret a config and check all of it that needs no data."""
    check_config(config, kind.KEYS)
    plan = make_plan(config, kind.geometry(config))
    optim, every, batch_size = config.optim, config.probe.every, config.data.batch_size
    num_devices = 1 if mesh is None else mesh.size
    if mesh is not None:
        check_batch_size(batch_size, mesh)
    reject(config,
        (every and (not config.eval_every or every % config.eval_every), "probe.every eval_every",
         "probes are fitted at evaluations; make probe.every a multiple of eval_every, or 0"),
        (optim.warmup_steps > config.num_steps, "optim.warmup_steps num_steps",
         f"for so short a run add --config.optim.warmup_steps={config.num_steps // 10}"),
        (batch_size % (optim.accumulate * num_devices), "optim.accumulate data.batch_size",
         f"the batch does not divide evenly into these parts on {num_devices} devices; choose "
         "another number of parts"),
        (optim.name == "schedule_free" and optim.ema_decay, "optim.name optim.ema_decay",
         "this optimizer evaluates an average of its own; set optim.ema_decay to 0, or choose "
         "another"),
    )  # fmt: skip
    training.optimizer_of(config)
    training.cadence_of(config).check_multiples({"num_steps": config.num_steps})
    return plan


def make_work(
    kind: Contrastive, plan: Plan, data: Any, folder: pathlib.Path, mesh: jax.sharding.Mesh
) -> Work:
    """Return what audits, trains, probes and exports a plan."""
    config, problem = plan.config, kind.make_problem(plan, data)
    run_on_first(problem.record, folder)

    probe_of = functools.partial(make_probe, kind, workdir=folder, data=data, model=problem.model)
    probe = probe_of(config)

    def train() -> tuple[str, Any]:
        audit_run(folder, problem, False)
        return training.train(folder, problem, probe, mesh)

    def finish(variables: Any) -> None:
        probe_once(config, folder, probe_of, variables)
        last = describe(kind, folder, config, problem.model, variables, config.num_steps)
        share(kind, folder, folder / models.EXPORTED, last)

    return Work(
        train=train,
        finish=finish,
        write_page=lambda folder: write_page(kind, folder),
        closing_lines=lambda folder: report.closing_lines(folder, kind.PAGE.words),
        audit=lambda: audit_run(folder, problem, True),
    )


def write_page(kind: Contrastive, workdir: pathlib.Path) -> pathlib.Path:
    """Write the page of a run, with what its kind of data has."""
    return report.write_report(workdir, kind.PAGE.words, kind.PAGE.sections)


def make_probe(
    kind: Contrastive, config: Config, workdir: pathlib.Path, data: Any, model: models.Model
) -> Probe:
    """Return what fits the probes of `config.probe` and records them."""
    tasks = kind.PROBES.tasks(config, data)

    def probe(variables: Any, step: int) -> list[Score]:
        with kept_until_done(workdir, step) as folder_of:
            context = ProbeContext(config, data, model, variables, workdir, step, folder_of)
            return run_probes(context, tasks, kind.PROBES)

    return probe


def probe_once(
    config: Config, workdir: pathlib.Path, make_probe: Callable[[Config], Probe], variables: Any
) -> None:
    """Fit the probes of the last step that no start has fitted, or whose scores were replaced."""
    stamp, probe, left = status.read(workdir / PROBED), config.probe, config
    if was_probed(workdir, config.num_steps) and options(stamp.get("probe")) == options(probe):
        replaced = {(task, feature) for task, feature in stamp.get("replaced", ())}
        fitted = {*itertools.product(*(stamp["probe"][name] for name in ASKED))} - replaced
        pairs = {*itertools.product(*(probe[name] for name in ASKED))} - fitted
        kept = {
            f"probe.{name}": tuple(one for one in probe[name] if one in {pair[i] for pair in pairs})
            for i, name in enumerate(ASKED)
        }
        left = with_settings(config, kept)
    if left.probe.tasks:
        scores = make_probe(left)(variables, config.num_steps)
        before = stamp.get("data", []) if stamp.get("step") == config.num_steps else []
        data = sorted({score.data for score in scores or ()} | {*before})
        probed = {"step": config.num_steps, "probe": plain(config.probe), "data": data}
        write_sealed(workdir / PROBED, probed)


def options(probe: Any) -> dict[str, Any] | None:
    """Return the options by which probes are fitted: a task is asked of each feature by itself."""
    return None if probe is None else {**plain(probe), **dict.fromkeys(ASKED, ())}


def check_places(kind: Contrastive, own: Config, config: Config) -> bool:
    """Return whether a run is to be probed on its own data, which may have been moved."""
    places_of = kind.PROBES.places_of
    is_own, before = plain(config.data) == plain(own.data), places_of(own)
    for name, given in places_of(config).items():
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
    """Fit probes by another config than the run's, whose command fits again what they replace."""
    path = workdir / PROBED
    stamp = status.read(path)
    is_changed = options(own.probe) != options(config.probe)
    is_changed |= plain(own.data) != plain(config.data)
    if stamp and step == own.num_steps and is_changed:  # before: a stop leaves some of them
        pairs = itertools.product(*(config.probe[name] for name in ASKED))
        replaced = sorted({*map(tuple, stamp.get("replaced", ())), *pairs})
        write_sealed(path, {**stamp, "replaced": replaced})
    scores = probe(variables, step)
    if stamp.get("data") and not {*stamp["data"]} & {score.data for score in scores}:
        write_sealed(path, stamp)


CARD = "README.md"


def share(
    kind: Contrastive, workdir: pathlib.Path, folder: pathlib.Path, pretrained: models.Pretrained
) -> None:
    """Write weights, description and card; the card is made first, so that all or none is there."""
    card = write_card(kind, workdir, folder.resolve().name, pretrained)
    models.save(folder, pretrained)
    write_text(folder / CARD, card)


def describe(
    kind: Contrastive,
    workdir: pathlib.Path,
    config: Config,
    model: models.Model,
    variables: Any,
    step: int,
) -> models.Pretrained:
    """Return the model of a run, with what its input is; of paths, only the last part is shared."""
    own, keys = flatten(config), flatten(kind.KEYS).items()
    names = {name: pathlib.Path(own[name]).name for name, key in keys if key.is_path}
    about = {"step": step, "config": plain(with_settings(config, names))}
    given = kind.describe_input(config, workdir)
    return models.Pretrained(model.module, variables, given, about)


def write_card(
    kind: Contrastive, workdir: pathlib.Path, folder: str, pretrained: models.Pretrained
) -> str:
    """Return the model card: what it was trained on, what was measured, how it is loaded."""
    config, step = pretrained.about["config"], pretrained.about["step"]
    run = read_run(workdir)
    usual = {name: key.default for name, key in kind.KEYS["data"].items()}
    shown = [
        f"{name} {value}"
        for name, value in config["data"].items()
        if name == "source" or value != usual.get(name)
    ]
    return f"""# {workdir.resolve().name}

Contrastive predictive coding (van den Oord et al. 2018) of {config["kind"]}: encoder,
context and predictor after {step:,} of {config["num_steps"]:,} steps.

## Data

{"; ".join(shown)}. Batches of {config["data"]["batch_size"]}, seed {config["seed"]}, negatives by
the rule {config["negatives"]["rule"]}, loss {config["loss"]["name"]}.

## Mutual information

{describe_bound(run, step)}

## Scores

{describe_scores(run, step)}

## Use

```python
{kind.PAGE.use.format(folder=folder, **pretrained.input)}
```

`model.safetensors` holds the arrays; `config.json` the modules with all their fields, and the
config of the run. Neither holds code.
"""


def describe_bound(run: Run, step: int) -> str:
    """Return the last held-out bound up to this step, in nats, in words."""
    rows = run.offsets[(run.offsets.series == "strict") & (run.offsets.step <= step)]
    # Of what was not finite, a number is missing: that evaluation is passed over.
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
    """Return a table of the last scores up to this step."""
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
