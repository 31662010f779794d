r"""Which side of a window to augment, and by which effect: the ablation of Kharitonov et al. 2020.

    cpc studies.augmentation --workdir runs/augmentation
    cpc studies.augmentation --workdir runs/augmentation --config.num_steps=8000
    cpc studies.augmentation --workdir runs/quick --quick

Cells are ordinary runs of a config of audio, the demo's unless --config names another: nothing,
past, future and both sides augmented by the same effects, and the past by each effect alone; each
with every seed. --only makes some of them. The same command again skips what is done and resumes
what is not. The folder gets augmentation.html, .md and .json: phones and speakers read off c by a
linear probe, and the strict bound, with intervals over seeds and differences to no augmentation.
"""

import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from configs import audio_voices
from cpc.data.augment_sound import EFFECTS
from cpc.files import write_sealed
from cpc.report.engine import Section, Table, write_page
from cpc.results import Cell as Group
from cpc.results import Frame, compare, group_by_seed, is_better
from cpc.types import UserError
from experiments.command import cli
from experiments.command.config import Config
from experiments.comparison import dots, read_runs
from experiments.comparison.questions import (
    NOTE,
    Question,
    answers,
    estimate,
    lead_of,
    one_row,
    questions,
    show_estimate,
    show_lead,
)
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import check_cell, end, lock_folder, make_job, run_jobs
from experiments.sweep.launchers import Job, count_signals, make_local

#: What sides are augmented by.
TOGETHER = ("pitch", "noise", "reverb")
NONE = "none"
CELLS: dict[str, dict[str, Any]] = {
    NONE: {"augment.side": NONE},
    **{
        side: {"augment.side": side, "augment.effects": TOGETHER}
        for side in ("past", "future", "both")
    },
    **{
        f"past-{effect}": {"augment.side": "past", "augment.effects": (effect,)}
        for effect in EFFECTS
    },
}
#: Of all cells, whatever the config: what the table shows, and no more.
PROBES = {
    "probe.tasks": ("phones", "speakers"),
    "probe.features": ("c",),
    "probe.hidden_width": 0,
}
#: To see that it works: sound that is made up, and a network that learns nothing.
QUICK = {
    "num_steps": 4,
    "log_every": 2,
    "eval_every": 4,
    "save_every": 4,
    "data.source": "synthetic",
    "data.window_samples": 2560,
    "data.batch_size": 8,
    "model.width": 8,
    "model.context_width": 8,
    "model.num_offsets": 2,
    "optim.warmup_steps": 1,
    "evaluate.num_windows": 16,
    "probe.num_epochs": 1,
    "probe.minutes_per_speaker": 0.05,
}


def plan_cells(names: Sequence[str], shared: Mapping[str, Any], seeds: int) -> list[Cell]:
    """Return some of the cells, or all if none is named, with every seed from 0 on.

    >>> [cell.name for cell in plan_cells(["none", "past"], {}, 2)]
    ['none,seed=0', 'none,seed=1', 'past,seed=0', 'past,seed=1']

    Raises:
        UserError: there is no such cell.
    """
    for name in names:
        if name not in CELLS:
            raise UserError(f"--only is {name!r}: choose from {', '.join(CELLS)}")
    return [
        Cell(f"{name},seed={seed}", {**PROBES, **shared, **settings, "seed": seed})
        for name, settings in CELLS.items()
        if name in names or not names
        for seed in range(seeds)
    ]


def ablate(
    config: Config, file: str, cells: Sequence[Cell], folder: pathlib.Path, device: str
) -> None:
    """Run the cells that are not done, one after the other, and write the page after each."""
    jobs = [make_job(file, cell, folder, device) for cell in cells]
    plan = {"cells": {cell.name: cell.settings for cell in cells}, "command": cli.command_line()}
    with lock_folder(folder, "ablation") as lock, count_signals() as num_signals:
        write_sealed(folder / "sweep.json", plan)

        def begin(_: Sequence[Job]) -> Any:
            return make_local(1, num_signals, [lock.fileno()]), 1

        run_jobs(jobs, begin, num_signals, lambda: write_study(folder))
        stopped = num_signals() > 0
    if (page := folder / "augmentation.html").exists():
        print(f"report: {page}")
    end(folder, stopped)


def write_study(folder: pathlib.Path) -> None:
    """Write augmentation.html, .md and .json of the cells, as far as they are."""
    paths = [path for name in CELLS for path in sorted(folder.glob(f"{name},seed=*"))]
    found, problems = read_runs([(path.name, path) for path in paths])
    if not found:
        return
    groups = group_by_seed(found)
    scores = compare(groups)
    lost = [f"{name}: {problem}" for name, problem in problems.items()]
    sections = [
        Section("", [*findings(groups, scores), *lost]),
        Section("Which side", tables=[table_of(groups, scores, is_side=True)]),
        Section("Which effect, on the past", tables=[table_of(groups, scores, is_side=False)]),
        Section("Scores", figures=dots(groups, scores)),
    ]
    seeds = sorted({run.seed for _, run in found})
    steps = found[0][1].num_steps
    lead = f"{len(groups)} cells of {steps:,} steps, seeds {', '.join(map(str, seeds))}."
    title = "Augmentation in time: which side, which effect"
    write_page(folder, "augmentation", title, lead, (), sections, ["md", "json"])


def asked(scores: Frame) -> list[Question]:
    """Return what the tables show: linear probes by frame, and the strict bound."""
    bound = scores[scores.task == "information"].drop_duplicates("task")
    fields = list(Question._fields)
    bounds = [Question(*row) for row in bound[fields].itertuples(index=False)]
    probes = [one for one in questions(scores) if one.features == "c" and one.method == "linear"]
    return [*probes, *bounds]


def title_of(question: Question) -> str:
    """Return the head of a question's column."""
    if question.task == "information":
        return "bound, nats"
    return f"{question.task} by {question.unit}, {question.data}, %"


def table_of(groups: Sequence[Group], scores: Frame, is_side: bool) -> Table:
    """Return the cells of one question of the ablation, each beside no augmentation."""
    import pandas as pd

    names = [
        group.name
        for group in groups
        if group.name == NONE or group.name.startswith("past-") != is_side
    ]
    columns: dict[str, list[Any]] = {"augmented": [describe(name) for name in names]}
    formats: dict[str, Any] = {}
    for question in asked(scores):
        rows = [one_row(answers(question, scores), name) for name in names]
        title = title_of(question)
        columns[title] = [estimate(row) for row in rows]
        columns[f"{title}, over none"] = [lead_of(row, "over_first") for row in rows]
        formats |= {title: show_estimate, f"{title}, over none": show_lead}
    return Table("", pd.DataFrame(columns), NOTE, formats)


def describe(name: str) -> str:
    """Return a cell in words.

    >>> describe("past"), describe("past-band_reject")
    ('past: pitch, noise, reverb', 'band reject')
    """
    if name == NONE:
        return "nothing"
    side, _, effect = name.partition("-")
    return effect.replace("_", " ") if effect else f"{side}: {', '.join(TOGETHER)}"


def findings(groups: Sequence[Group], scores: Frame) -> list[str]:
    """Return in sentences which cells differ from no augmentation by more than their interval."""
    if not any(group.name == NONE for group in groups):
        return ["The cell without augmentation is not there yet: nothing can be compared with it."]
    sentences = []
    for question in asked(scores):
        better, worse, open_ = [], [], []
        for row in answers(question, scores).itertuples():
            if row.cell == NONE:
                continue
            verdict = is_better(row.over_first_low, row.over_first_high, row.higher_is_better)
            text = f"{describe(str(row.cell))} {show_lead(lead_of(row, 'over_first'))}"
            (open_ if verdict is None else better if verdict else worse).append(text)
        said = [
            f"{word} than without augmentation: {'; '.join(cells)}"
            for word, cells in (("better", better), ("worse", worse))
            if cells
        ]
        if open_:
            said.append(f"{len(open_)} of {len(better + worse + open_)} cannot be told from it")
        if said:
            sentences.append(f"{title_of(question)}: {'. '.join(said)}.")
    return sentences


def main(config: Config) -> None:
    """Plan, check, run, write the page."""
    if SEEDS.value < 1:
        raise UserError(f"--seeds is {SEEDS.value}: it is a number of seeds, 1 or more")
    if config.get("kind") != "audio":
        raise UserError(
            f"the config's kind is {config.get('kind')!r}: sound is augmented, so name one of audio"
        )
    shared = config_flags.get_override_values(flags.FLAGS["config"])
    shared = {**(QUICK if IS_QUICK.value else {}), **shared}
    cells = plan_cells(ONLY.value, shared, 1 if IS_QUICK.value else SEEDS.value)
    for cell in cells:
        check_cell(config, cell)
    file = config_flags.get_config_filename(flags.FLAGS["config"])
    folder = pathlib.Path(cli.WORKDIR.value or "runs/augmentation").expanduser()
    if DRY_RUN.value:
        device = cli.DEVICE.value
        jobs = [make_job(file, cell, folder, device) for cell in cells]
        print("\n".join(shlex.join(job.command) for job in jobs))
        return
    print(f"workdir: {folder}")
    ablate(config, file, cells, folder, cli.DEVICE.value)


if __name__ == "__main__":
    SEEDS = flags.DEFINE_integer("seeds", 3, "So many seeds of each cell, from 0 on.")
    ONLY = flags.DEFINE_multi_string("only", [], f"A cell to make: {', '.join(CELLS)}.")
    IS_QUICK = flags.DEFINE_bool("quick", False, "One seed, tiny: to see that it works.")
    DRY_RUN = flags.DEFINE_bool("dry-run", False, "Print every command and end.")
    CONFIG = cli.define_config(audio_voices.__file__)
    cli.run(lambda: main(CONFIG.value))
