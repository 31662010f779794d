r"""Train cells of Table 2 in one process and export their weights, in a few minutes of a GPU.

    export XLA_PYTHON_CLIENT_MEM_FRACTION=0.3  # for three processes on one GPU
    for part in 1/3 2/3 3/3; do
        cpc reproduce.train --part $part --audio num_steps=10000 \
            --audio model.width=256 --audio steps_per_launch=10 &
    done; wait

Cells with equal programs share one compilation. Cells are neither probed nor checkpointed, and
their weights are written, in half precision, at each --export-step and at the end. Repeating the
command skips finished cells and restarts interrupted cells from the beginning.
"""

import functools
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from cpc.files import flatten, locked, read_object, write_sealed
from cpc.train import JsonlWriter, ProgressWriter, TrainState, put_batch, stop_on_signals
from cpc.train.loop import Cadence, Sinks, fit
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import Config
from experiments.command.run_dir import check_same_data, identify_run
from experiments.kinds.audio import kind as audio
from experiments.reproduce import cells
from experiments.training import records
from experiments.training.contrastive import CARD, interpret, share, with_start
from experiments.training.problem import Problem, model_variables
from experiments.training.step import make_batches, make_loss, make_step
from experiments.training.weights import describe

#: Keys that change neither the training program nor the evaluation program.
DATA_KEYS = ("seed", "data.one_speaker")


def record_cells(
    folder: pathlib.Path, names: Sequence[str], settings: Sequence[str], scale: str, seeds: Any
) -> list[cells.Planned]:
    """Plan cells of Table 2, by default all, and record the plan in their folder."""
    parts, names, own = ["table 1", "table 2"], names or [*cells.TABLE_2], {"audio": settings}
    planned, plan = cells.plan_parts(parts, names, scale, settings=own, seeds=seeds)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "plan.lock"):  # parts may start at the same time
        path = folder / "sweep.json"
        write_sealed(path, cells.merge_plans(plan, planned, folder, read_object(path, [])))
    return planned


def take_part(planned: Sequence[Any], part: str) -> Sequence[Any]:
    """Return part "i/n" of the cells, keeping neighbors together because they share programs."""
    i, n = map(int, part.split("/")) if re.fullmatch(r"\d+/\d+", part) else (0, 0)
    if not 0 < i <= n:
        raise UserError(f"--part is not i/n with 1 <= i <= n (got {part}): pass 1/1 for all cells")
    first, last = (-(-len(planned) * end // n) for end in (i - 1, i))
    return planned[first:last]


def train_cells(
    planned: Sequence[cells.Planned], folder: pathlib.Path, export_steps: Sequence[int], device: str
) -> None:
    """Train and export each unfinished cell in turn."""
    mesh, programs = cluster.start(device), {}
    configs = {cell.config.seed: cell.config for cell in planned}
    load = functools.cache(lambda seed: audio.load_data(configs[seed], print))
    for number, (name, _, _, _, config) in enumerate(planned, 1):
        *_, last = ends = sorted({*export_steps, config.num_steps})
        if last > config.num_steps:
            raise UserError(
                f"--export-step is past the last step {config.num_steps} (got {last}): lower it"
            )
        path, is_done = folder / name, (folder / name / f"exported-{last}" / CARD).exists()
        print(f"[{number}/{len(planned)}] {'done   ' if is_done else 'trains '}{name}", flush=True)
        if not is_done:
            data = load(config.seed)
            plan = interpret(audio, config, mesh)
            write_sealed(path / "config.json", config)
            problem = with_start(audio, plan, audio.make_problem(plan, data), path)
            check_same_data(path, data.fingerprint())
            train_cell(problem, programs, path, ends, mesh)


def train_cell(
    problem: Problem, programs: dict[str, Any], path: pathlib.Path, ends: Sequence[int], mesh: Any
) -> None:
    """Train one cell with the programs of its `program_key`, and export it at the steps `ends`."""
    config = problem.plan.config
    state, step, schedule = make_step(problem, mesh)
    loss = make_loss(problem, mesh)
    measure = jax.jit(lambda *given: loss(*given, jax.random.key(0))[1][1]["offsets"])
    step, measure = programs.setdefault(program_key(config), (step, measure))
    console = ProgressWriter(config.num_steps, records.describe_record, problem.per_step)
    writers = JsonlWriter(path / "metrics.jsonl", 0, identify_run(path, config)), console
    with stop_on_signals() as stop:
        for end in ends:
            state, reason = fit(
                state,
                step,
                make_batches(problem, mesh, end),
                num_steps=end,
                summarize=records.make_summary(problem, schedule, console.say),
                evaluate=functools.partial(evaluate, problem, measure, mesh),
                cadence=Cadence(config.log_every, steps_per_launch=config.steps_per_launch),
                sinks=Sinks(writers=writers),
                stop=stop,
            )
            if reason:
                raise UserError(f"{path.name} was stopped by {reason}: repeat the command to train")
            variables = jax.device_get(model_variables(state.params, state.ema, state.extra))
            variables = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), variables)
            made = describe(audio, path, config, problem.model, variables, end)
            share(audio, path, path / f"exported-{end}", made)
    for writer in writers:
        writer.close()


def program_key(config: Config) -> str:
    """Return a string that is equal for configs with equal programs."""
    known = flatten(config).items()
    return repr([(k, v) for k, v in known if k not in DATA_KEYS and not k.startswith("probe.")])


def evaluate(
    problem: Problem, measure: Callable, mesh: jax.sharding.Mesh, state: TrainState
) -> list[dict[str, Any]]:
    """Return a record with the held-out loss, or [] if the problem has no held-out data."""
    held_out, params = problem.held_out, state.ema or state.params
    if held_out is None:
        return []
    batches = (put_batch(held_out.draw(number), mesh) for number in range(held_out.number))
    sums = jax.device_get([measure(params, state.extra, batch) for batch in batches])
    total = jax.tree.map(lambda *leaves: sum(leaves), *sums)
    tracker = records.make_tracker(problem.plan)
    track = tracker(total)
    loss = records.sum_with_anchors(track.loss, total.anchors)
    return [{"loss": loss, **records.bound_metrics(problem.plan, tracker, track)}]


def main() -> None:
    """Record the plan and train one part of its cells."""
    folder = pathlib.Path(cli.WORKDIR.value or "runs/cells").expanduser()
    planned = record_cells(folder, CELL.value, SETTINGS.value, SCALE.value, SEEDS.value)
    train_cells(take_part(planned, PART.value), folder, EXPORT.value, cli.DEVICE.value)
    print(f"exports: {folder}; probe them with cpc reproduce.judge --workdir {folder}")


if __name__ == "__main__":
    CELL = flags.DEFINE_multi_enum("cell", [], [*cells.TABLE_2], "Cell to train. Default: all.")
    PART = flags.DEFINE_string("part", "1/1", "Part of the cells to train, as i/n.")
    SCALE = flags.DEFINE_enum("scale", "small", list(cells.SCALES), "Size of the cells.")
    SETTINGS = flags.DEFINE_multi_string("audio", [], "key=value for cells, e.g. model.width=256.")
    SEEDS = flags.DEFINE_integer(
        "seeds", None, "Seeds per cell. Default: 3 at small and medium.", 1
    )
    EXPORT = flags.DEFINE_multi_integer("export-step", [], "Additional step to export at.", 1)
    cli.run(main)
