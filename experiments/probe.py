"""Probes on the frozen features of a run: what is in z and c, by a linear or one-hidden-layer map.

python -m experiments.probe --workdir runs/voices --task phones
python -m experiments.probe --workdir runs/fashion --task few_labels --step 1000
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from absl import flags

from cpc import report
from cpc.types import UserError
from experiments import (
    audio,
    audio_data,
    audio_probes,
    image,
    image_data,
    image_probes,
    launch,
    training,
)
from experiments.launch import Config

KNOWN = {"audio": audio_probes.TASKS, "images": image_probes.TASKS}
TASK = flags.DEFINE_enum(
    "task", "all", ["all", *audio_probes.TASKS, *image_probes.TASKS], "What to probe for."
)
STEP = flags.DEFINE_integer("step", None, "Checkpoint to probe; the newest by default.")


def main() -> None:
    """Probe a checkpoint and rewrite the run's report."""
    if not launch.WORKDIR.value:
        raise UserError("no --workdir is given: name the directory of a run, such as runs/voices")
    workdir = pathlib.Path(launch.WORKDIR.value)
    config = launch.read_config(workdir)
    kind = "audio" if "window_samples" in config.data else "images"
    tasks = list(config.probe.tasks) if TASK.value == "all" else [TASK.value]
    for task in tasks:
        if task not in KNOWN[kind]:
            raise UserError(
                f"{workdir} holds a run on {kind}, which has no task {task}: choose from "
                f"{', '.join(KNOWN[kind])}"
            )
    launch.start(launch.DEVICE.value)
    config.probe.tasks = tuple(tasks)
    variables, step = training.read_variables(workdir, STEP.value)
    probe = (probe_audio if kind == "audio" else probe_images)(config, workdir)
    probe(variables, step)
    print(f"report: {report.write_report(workdir)}")


def probe_audio(config: Config, workdir: pathlib.Path) -> Callable[[Any, int], Any]:
    """probe(variables, step), on the recordings of the config."""
    data = audio_data.load_data(config, print)
    model = audio.build_model(config.model)
    audio_probes.check_data(config, data)
    return functools.partial(audio_probes.run_tasks, config, workdir, data, model)


def probe_images(config: Config, workdir: pathlib.Path) -> Callable[[Any, int], Any]:
    """probe(variables, step), on the pictures of the config."""
    data = image_data.load_data(config, print)
    model = image.build_model(config, image.choose_offsets(config))
    prepare = functools.partial(image.prepare, config)
    image_probes.check_data(config, data)
    return functools.partial(image_probes.run_tasks, config, workdir, data, model, prepare)


if __name__ == "__main__":
    launch.run(main)
