r"""Train a config of any kind, track the information, probe the features, and write a page.

    cpc train --config audio_voices --workdir runs/voices
    cpc train --config audio_voices --workdir runs/low --config.optim.learning_rate=1e-4
    cpc train --config audio_voices --keys optim

The same command again resumes the run. `cpc configs` lists configs; --config.KEY=VALUE sets a key;
--keys lists the keys of a config, or of one section, and without --config the keys of all kinds.
"""

import pathlib
from typing import Any

from absl import flags

from cpc.train import is_first, run_on_first
from cpc.types import UserError
from experiments.command import cli, cluster, names
from experiments.command.config import check_config
from experiments.command.keys import list_keys, list_kinds, take_section
from experiments.command.run_dir import check_same_data, open_run, record_state, write_skipped
from experiments.kinds import registry as kinds
from experiments.training.loop import check_logger
from experiments.training.problem import Dataset, Work


def run(config: Any, workdir: str | None, device: str = "auto", only_audit: bool = False) -> None:
    """Validate and train a config or resume its run, then evaluate it and write its page."""
    kind, pipeline = kinds.kind_of(config), kinds.pipeline_of(config)
    check_config(config, kind.KEYS)
    check_logger(config)
    if pipeline.ON_ONE_DEVICE:
        mesh = cluster.start_alone(device, config.kind)
    else:
        mesh = cluster.start(device, config, workdir)
    plan = pipeline.interpret(kind, config, mesh, workdir)
    with open_run(workdir, config, mesh) as folder:
        data: Dataset | None = cluster.load_in_turn(lambda: kind.load_data(config, print))
        if data is not None:
            check_same_data(folder, data.fingerprint())
            write_skipped(folder, data.skipped)
        work = pipeline.make_work(kind, plan, data, folder, mesh)
        if only_audit:
            if work.audit is None:
                raise UserError(f"--audit needs negatives (got kind {config.kind}): remove --audit")
            work.audit()
            state = "audited"
        else:
            reason, trained = work.train()
            if not reason:
                return run_on_first(finish, work, folder, trained)
            print(f"stopped by {reason}; to resume: {names.command_line()}")
            state = "stopped"
        if is_first():
            record_state(folder, state)


def finish(work: Work, folder: pathlib.Path, trained: Any) -> None:
    """Evaluate the trained state, and write the page."""
    try:
        work.finish(trained)
    finally:  # write the page even if the evaluation fails
        path = work.write_page(folder)
        print(*work.closing_lines(folder), f"report: {path}", sep="\n")


if __name__ == "__main__":
    SECTION = take_section()
    CONFIG = cli.define_config()
    AUDIT = flags.DEFINE_bool(
        "audit", False, "Only audit the negatives of the config, without training."
    )

    def main() -> None:
        """Train the config, or list its keys."""
        config = CONFIG.value
        if SECTION is None:
            run(config, cli.WORKDIR.value, cli.DEVICE.value, AUDIT.value)
        elif config is None:
            print(list_kinds({name: kind.KEYS for name, kind in kinds.KINDS.items()}, SECTION))
        else:
            print(list_keys(kinds.kind_of(config).KEYS, SECTION))

    cli.run(main)
