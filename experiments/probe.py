"""Fit linear or one-hidden-layer probes to the frozen features z and c of a run.

    cpc probe --workdir runs/voices --task phones
    cpc probe --workdir runs/fashion --task few_labels --step 1000
    cpc probe --workdir runs/fashion --step best
    cpc probe --workdir runs/voices --data.source=folder --data.path=~/recordings
    cpc probe --workdir runs/voices --task ctc --probe.ctc_minutes="(10.0,)"

By default all tasks of the run's config are fitted. --data.KEY=VALUE and --probe.KEY=VALUE set keys
for this command only, for example to probe a run on other data with their own labels. Scores are
recorded by step and by the name of the data, which is the name of the folder or of the file with
labels; other data must not have the name of the run's own data. A new score replaces the previous
one with the same task, features and data, and the report is rewritten. Scores of the run's own data
that were fitted with other options are fitted again by the training command.
"""

import copy
import pathlib

from absl import flags

from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import check_config, evaluation_config
from experiments.command.run_dir import check_same_data
from experiments.kinds.registry import read_contrastive
from experiments.training import contrastive
from experiments.training import step as training

TASK = flags.DEFINE_string("task", "all", "Task of the run's kind, or all.")
STEP = cli.define_step()
SETTINGS = cli.take_settings("data", "probe")


def main() -> None:
    """Probe a checkpoint and rewrite the run's report."""
    if not cli.WORKDIR.value:
        raise UserError("--workdir is required, e.g. --workdir runs/voices")
    workdir = pathlib.Path(cli.WORKDIR.value).expanduser()
    kind, own = read_contrastive(workdir)
    config = copy.deepcopy(own)
    known = kind.KEYS["probe"]["tasks"].words
    if TASK.value != "all":
        if TASK.value not in known:
            raise UserError(
                f"--task of a run of kind {own.kind} must be all or one of {', '.join(known)} "
                f"(got {TASK.value})"
            )
        config.probe.tasks = (TASK.value,)
    config = evaluation_config(config, kind.KEYS, SETTINGS)
    check_config(config, kind.KEYS)
    kind.geometry(config)  # validates the config
    is_of_run = contrastive.check_data_identity(kind, own, config)
    cluster.start(cli.DEVICE.value)
    variables, step = training.read_variables(workdir, STEP.value)
    data = kind.load_data(config, print)
    if is_of_run:
        check_same_data(workdir, data.fingerprint())
    probe = contrastive.make_probe(kind, config, workdir, data, kind.build_model(config))
    contrastive.probe_with_config(config, own, workdir, probe, variables, step)
    print(f"report: {contrastive.write_page(kind, workdir)}")


if __name__ == "__main__":
    cli.run(main)
