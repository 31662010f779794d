"""Probes on the frozen features of a run: what is in z and c, by a linear or one-hidden-layer map.

python -m experiments.probe --workdir runs/voices --task phones
python -m experiments.probe --workdir runs/voices --task speakers --step 1000
"""

import pathlib

from absl import flags

from cpc import report
from cpc.train import restore_params
from cpc.types import UserError
from experiments import audio, audio_probes, launch, training
from experiments.audio_data import load_data

TASK = flags.DEFINE_enum("task", "all", ["all", *audio_probes.TASKS], "What to probe for.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint to probe; the newest by default.")


def main() -> None:
    """Probe a checkpoint and rewrite the run's report."""
    if not launch.WORKDIR.value:
        raise UserError("no --workdir is given: name the directory of a run, such as runs/voices")
    workdir = pathlib.Path(launch.WORKDIR.value)
    config = launch.read_config(workdir)
    launch.start(launch.DEVICE.value)
    arrays, _, step = restore_params(workdir / "checkpoints", STEP.value)
    variables = training.model_variables(arrays["params"], arrays["ema"], arrays["extra"])
    data = load_data(config, print)
    model = audio.build_model(config.model)
    tasks = None if TASK.value == "all" else [TASK.value]
    audio_probes.check_data(config, data, tasks)
    audio_probes.run_tasks(config, workdir, data, model, variables, step, tasks)
    print(f"report: {report.write_report(workdir)}")


if __name__ == "__main__":
    launch.run(main)
