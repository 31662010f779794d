r"""Train cells of Table 2 in one process and export their weights, for a few minutes of a GPU.

    export XLA_PYTHON_CLIENT_MEM_FRACTION=0.3  # for three processes on one GPU
    for part in 1/3 2/3 3/3; do
        cpc reproduce.train --workdir cells --part $part --audio num_steps=10000 \
            --audio model.width=256 --audio steps_per_launch=10 &
    done; wait
    cpc reproduce.train --workdir long --cell mixed --seeds 1 --audio num_steps=20000 \
        --audio model.width=512 --audio model.dtype=bfloat16 --audio data.batch_size=64 \
        --audio negatives.shards=8 --export-steps 1000,2000,5000,10000

Cells with equal programs share one compilation. There are no probes and no checkpoints: held-out
data are evaluated for the loss alone, and weights are written as soon as a cell reaches one of
--export-steps or its end. The same command again skips finished cells and starts a cut one from
the beginning. `cpc reproduce.judge` then probes the exports on a CPU. An export has about 4 MB at
the default width, 10 MB at 256 channels and 25 MB at 512; --half writes half of that.
"""

import functools
import pathlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags

from cpc.files import flatten, read_object, try_lock, write_sealed
from cpc.train import JsonlWriter, ProgressWriter, TrainState, put_batch, stop_on_signals
from cpc.train.loop import Cadence, Sinks, fit
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import Config
from experiments.command.run_dir import check_same_data, identify_run
from experiments.kinds.audio import kind as audio
from experiments.reproduce import cells
from experiments.reproduce.cells import Planned
from experiments.training import contrastive, records
from experiments.training.problem import Problem, model_variables
from experiments.training.step import make_batches, make_loss, make_step

#: Keys that change neither the program of a training step nor that of an evaluation.
DATA_KEYS = ("seed", "data.one_speaker")


class Program(NamedTuple):
    """The compiled functions of cells whose configs differ in `DATA_KEYS` alone."""

    step: Callable[[TrainState, Any], TrainState]
    measure: Callable[[Any, Any, Any], Any]
    """measure(params, extra, batch) -> the sums of the loss."""


def record_cells(
    folder: pathlib.Path, names: Sequence[str], settings: Sequence[str], scale: str,
    data: str | None, seeds: int | None,
) -> list[Planned]:  # fmt: skip
    """Plan cells of Table 2, all if none is named, and record the plan in their folder."""
    if unknown := [name for name in names if name not in cells.TABLE_2]:
        known = ", ".join(cells.TABLE_2)
        raise UserError(f"--cell is not in Table 2 (got {unknown[0]}): choose from {known}")
    data, seeds = data or cells.DEFAULT_DATA[scale], seeds or cells.SCALES[scale].seeds
    user = cells.read_user({"audio": settings}, scale, data)
    planned = cells.plan_cells(names or [*cells.TABLE_2], scale, data, user, seeds)
    plan = cells.describe_plan(planned, ["table 1", "table 2"], scale, data, user, seeds, 1)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "plan.lock").open("w") as lock:  # parts may start at the same moment
        while try_lock(lock) is False:
            time.sleep(0.1)
        path = folder / "sweep.json"
        write_sealed(path, cells.merge_plans(plan, planned, folder, read_object(path, [])))
    return planned


def take_part(planned: Sequence[Any], part: str) -> list[Any]:
    """Return part i of n of the cells; neighbors, which share programs, stay together.

    >>> take_part(["a", "b", "c", "d", "e"], "2/3")
    ['c', 'd']
    """
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    i, n = map(int, match.groups()) if match else (0, 0)
    if not 0 < i <= n:
        raise UserError(f"--part is not i/n with 1 <= i <= n (got {part}): pass 1/1 for all cells")
    first, last = (-(-len(planned) * end // n) for end in (i - 1, i))
    return list(planned[first:last])


def train_cells(
    planned: Sequence[Planned], folder: pathlib.Path, export_steps: Sequence[int], device: str,
    is_half: bool = False,
) -> None:  # fmt: skip
    """Train the cells that are not finished, one after the other, and export each."""
    mesh, programs = cluster.start(device), {}
    configs = {cell.config.seed: cell.config for cell in planned}
    load = functools.cache(lambda seed: audio.load_data(configs[seed], print))
    for number, (name, _, _, _, config) in enumerate(planned, 1):
        path, ends = folder / name, sorted({*export_steps, config.num_steps})
        if not 0 < ends[0] <= ends[-1] == config.num_steps:
            raise UserError(
                f"--export-steps are not between 1 and num_steps = {config.num_steps} (got "
                f"{', '.join(map(str, export_steps))}): leave out the others"
            )
        is_done = (export_folder(path, ends[-1]) / contrastive.CARD).exists()
        print(f"[{number}/{len(planned)}] {'done   ' if is_done else 'trains '}{name}", flush=True)
        if not is_done:
            data = load(config.seed)
            problem = audio.make_problem(contrastive.interpret(audio, config, mesh), data)
            write_sealed(path / "config.json", config)
            check_same_data(path, data.fingerprint())
            train_cell(problem, programs, path, ends, mesh, jnp.float16 if is_half else jnp.float32)


def export_folder(path: pathlib.Path, step: int) -> pathlib.Path:
    """Return the folder for the weights of a cell after some steps."""
    return path / f"exported-{step}"


def train_cell(
    problem: Problem, programs: dict[str, Program], path: pathlib.Path, ends: Sequence[int],
    mesh: jax.sharding.Mesh, dtype: Any = jnp.float32,
) -> None:  # fmt: skip
    """Train one cell and export it at each of some ascending steps."""
    config = problem.plan.config
    state, step, schedule = make_step(problem, mesh)
    program = programs.setdefault(program_key(config), Program(step, make_measure(problem, mesh)))
    console = ProgressWriter(config.num_steps, records.describe_record, problem.per_step)
    summarize = records.make_summary(problem, schedule, console.say)
    writers = JsonlWriter(path / "metrics.jsonl", 0, identify_run(path, config)), console
    with stop_on_signals() as stop:
        for end in ends:
            state, reason = fit(
                state,
                program.step,
                make_batches(problem, mesh, end),
                num_steps=end,
                summarize=lambda *sums: {**summarize(*sums), "num_steps": config.num_steps},
                evaluate=functools.partial(evaluate, problem, program.measure, mesh),
                cadence=Cadence(config.log_every, steps_per_launch=config.steps_per_launch),
                sinks=Sinks(writers=writers),
                stop=stop,
            )
            if reason:
                raise UserError(f"{path.name} was stopped by {reason}: start again to train it")
            variables = jax.device_get(model_variables(state.params, state.ema, state.extra))
            variables = jax.tree.map(lambda leaf: leaf.astype(dtype), variables)
            made = contrastive.describe(audio, path, config, problem.model, variables, end)
            contrastive.share(audio, path, export_folder(path, end), made)
    for writer in writers:
        writer.close()


def program_key(config: Config) -> str:
    """Return a text that is equal for two configs if their programs are."""
    known = flatten(config).items()
    return repr([(k, v) for k, v in known if k not in DATA_KEYS and not k.startswith("probe.")])


def make_measure(problem: Problem, mesh: jax.sharding.Mesh) -> Callable:
    """Return the compiled sums of the loss of a batch."""
    loss_fn = make_loss(problem, mesh)
    return jax.jit(lambda *given: loss_fn(*given, jax.random.key(0))[1][1]["offsets"])


def evaluate(
    problem: Problem, measure: Callable, mesh: jax.sharding.Mesh, state: TrainState
) -> list[dict[str, Any]]:
    """Return the record of the loss on held-out data."""
    held_out = problem.held_out
    if held_out is None:
        return []
    params, batches = state.ema or state.params, map(held_out.draw, range(held_out.number))
    sums = [measure(params, state.extra, put_batch(batch, mesh)) for batch in batches]
    total = jax.tree.map(lambda *leaves: sum(leaves), *jax.device_get(sums))
    tracker = records.make_tracker(problem.plan)
    track = tracker(total)
    loss = records.sum_with_anchors(track.loss, total.anchors)
    return [{"loss": loss, **records.bound_metrics(problem.plan, tracker, track)}]


def main() -> None:
    """Record the plan and train one part of its cells."""
    if not cli.WORKDIR.value:
        raise UserError("--workdir is required, e.g. --workdir runs/cells")
    folder, texts = pathlib.Path(cli.WORKDIR.value).expanduser(), EXPORT.value
    if unknown := [text for text in texts if not text.isdecimal()]:
        raise UserError(f"--export-steps is not a number (got {unknown[0]}): pass 1000,2000")
    names, settings, seeds = CELL.value, SETTINGS.value, SEEDS.value
    planned = record_cells(folder, names, settings, SCALE.value, DATASET.value, seeds)
    steps = [*map(int, texts)]
    train_cells(take_part(planned, PART.value), folder, steps, cli.DEVICE.value, HALF.value)


if __name__ == "__main__":
    CELL = flags.DEFINE_multi_string("cell", [], "A cell of Table 2, such as mixed; default: all.")
    PART = flags.DEFINE_string("part", "1/1", "i/n: train the i-th of n parts of the cells.")
    SCALE = flags.DEFINE_enum("scale", "small", list(cells.SCALES), "Size of the cells.")
    DATASET = flags.DEFINE_enum("data", None, list(cells.DATA), "Data; default: the scale's.")
    SETTINGS = flags.DEFINE_multi_string("audio", [], "key=value of all cells: model.width=256.")
    SEEDS = flags.DEFINE_integer("seeds", None, "Number of seeds; default: the scale's.")
    EXPORT = flags.DEFINE_list("export-steps", [], "Further steps to export weights at.")
    HALF = flags.DEFINE_bool("half", False, "Write weights in half precision, for a thin line.")
    cli.run(main)
