"""What runs cells: checked before, one command a folder, one that fails and the rest going on."""

import contextlib
import fcntl
import pathlib
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TextIO

from configs import audio_voices, image_fashion_mnist
from cpc.train.optimizer import make_schedule
from cpc.types import UserError
from experiments import launch, status
from experiments.launch import Config
from experiments.sweep.cells import Cell, with_settings
from experiments.sweep.launchers import Job, Launch


def check_cell(config: Config, cell: Cell) -> None:
    """A cell's config is checked before any cell runs, as far as it needs no data and no device."""
    checks = {"audio": check_audio, "image": check_image, "mutual_information": check_information}
    try:
        checks[kind_of(config)](with_settings(config, cell.settings))
    except UserError as error:
        raise UserError(f"the cell {cell.name}: {error}") from None


# The modules that these import define the flags of the cells' commands, which a sweep has not.


def check_audio(config: Config) -> None:
    """Keys, numbers and words of `experiments.audio`."""
    from experiments import audio, audio_data, audio_probes

    launch.check_config(config, audio_voices.get_config())
    audio_probes.check_options(config)
    audio.build_model(config.model)
    check_training(config, tuple(range(1, config.model.num_offsets + 1)), audio_data.SOURCES)


def check_image(config: Config) -> None:
    """Keys, numbers and words of `experiments.image`."""
    from experiments import image, image_data, image_probes

    launch.check_config(config, image_fashion_mnist.get_config())
    image_probes.check_options(config)
    offsets = image.choose_offsets(config)
    image.build_model(config, offsets)
    check_training(config, offsets, image_data.SOURCES)


def check_training(config: Config, offsets: tuple[int, ...], sources: Sequence[str]) -> None:
    """What sound and pictures have in common."""
    from experiments.objective import build_objective

    launch.check_word("data.source", config.data.source, sources)
    build_objective(config, offsets)
    optim = config.optim
    make_schedule(optim.learning_rate, optim.warmup_steps, config.num_steps, optim.schedule)


def check_information(config: Config) -> None:
    """Keys, numbers and words of `experiments.mutual_information`."""
    from experiments.mutual_information import __main__ as information
    from experiments.mutual_information import methods, staircase

    if config.protocol not in information.PROTOCOLS:
        known = ", ".join(information.PROTOCOLS)
        raise UserError(f"protocol is {config.protocol!r}: choose one of {known}")
    _, reference = information.PROTOCOLS[config.protocol]
    launch.check_config(config, reference())
    information.check_numbers(config)
    methods.make_methods(config)
    if config.protocol == "staircase":
        staircase.check(config)


def kind_of(config: Config) -> str:
    """The experiment that a config is of, by its keys."""
    if "protocol" in config:
        return "mutual_information"
    if "data" not in config or "model" not in config:
        raise UserError("this config is of no experiment that can be swept: it lacks data or model")
    return "image" if "augment" in config else "audio"


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path, what: str) -> Iterator[TextIO]:
    """A folder of cells, open for one command at a time: a sweep's, or a reproduction's."""
    if (folder / "config.json").exists():
        raise UserError(f"{folder} holds a single run: choose another --workdir for the {what}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "sweep.lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to the folder of the {what} {folder} ({error.strerror}): choose another "
            "--workdir, or free space there"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another {what} of {folder}, or a cell of it, still runs: wait for its end, or "
                "stop it"
            ) from None
        yield lock


def run_jobs(
    jobs: Sequence[Job],
    begin: Callable[[Sequence[Job]], tuple[Launch, int]],
    num_signals: Callable[[], int],
    after: Callable[[], None],
) -> None:
    """Run the cells that are not done; a cell that fails is recorded, and the others go on.

    `begin(jobs)` gives the launch function and how many it takes at a time; `after()` is called
    when a cell has ended.
    """
    wanted = [job for job in jobs if not status.is_done(job.folder)]
    done = len(jobs) - len(wanted)
    print(f"cells: {len(jobs)}, done: {done}")
    for job in jobs:
        (job.folder / "failed.json").unlink(missing_ok=True)
    if not wanted:
        after()
        return
    for job in wanted:
        job.folder.mkdir(parents=True, exist_ok=True)
    launch_one, num_parallel = begin(wanted)
    with ThreadPoolExecutor(num_parallel) as pool:
        futures = [pool.submit(run_job, job, launch_one, num_signals) for job in wanted]
        for future in as_completed(futures):
            if sentence := future.result():
                done += 1
                print(f"[{done}/{len(jobs)}] {sentence}\n", end="", flush=True)
                after()


def run_job(job: Job, launch_one: Launch, num_signals: Callable[[], int]) -> str:
    """Run one cell; returns what became of it, or nothing if the sweep was stopped before."""
    if num_signals():
        return ""
    print(f"starts {job.name}: {job.log}\n", end="", flush=True)  # one write: others print too
    try:
        length = job.log.stat().st_size if job.log.exists() else 0
        code = launch_one(job)
        error = describe_end(code, job.log, length)
    except OSError as problem:
        code, error = 1, f"cannot start: {problem}"
    if status.is_done(job.folder):
        return f"done   {job.name}"
    if num_signals():
        return f"stopped {job.name}"
    failure = {"status": code, "error": error, "command": shlex.join(job.command)}
    launch.write_json(job.folder / "failed.json", failure)
    return f"FAILED {job.name}: {error}"


def describe_end(code: int, log: pathlib.Path, length: int) -> str:
    """The error's sentence in what a log has beyond a length, or the last line; and a signal."""
    text = log.read_bytes()[length:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines()[-200:] if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    words = (errors or lines or [""])[-1]
    if code >= 0:
        return words or "it said nothing"
    name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
    return f"killed by {name}; its last words: {words}" if words else f"killed by {name}"


def end(folder: pathlib.Path, stopped: bool) -> None:
    """The table, where the results are, and the exit status."""
    rows = status.read_all(folder)
    print(status.describe(rows, shutil.get_terminal_size((120, 24)).columns))
    page = folder / "comparison.html"
    if page.exists():
        print(f"comparison: {page}")
    if stopped:
        launch.fail(f"interrupted; to resume: {launch.command_line()}", 130)
    if any(row.state != "done" for row in rows):
        sys.exit(1)
