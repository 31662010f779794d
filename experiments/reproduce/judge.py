r"""Probe the weights that `cpc reproduce.train` exported, and write a page of verdicts.

    cpc reproduce.judge
    cpc reproduce.judge --workdir runs/long --audio "probe.features=('c',)"

Runs without a GPU. Each exported step of a cell is evaluated by ABX and the probes of `cpc
reproduce`, except the supervised network, which does not depend on the weights. --audio sets data
and probe keys, such as another location of the recordings; their names and split must be those of
the training. Writes the page of `cpc reproduce`, and exports.csv with every score of c by step.
Repeat the command to resume.
"""

import functools
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pandas as pd
from absl import flags

from cpc.files import plain, read_json, read_object, write_sealed, write_text
from cpc.models import load_pretrained, make_model
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import Config, evaluation_config, load_config, with_settings
from experiments.command.run_dir import check_same_data
from experiments.kinds.audio import kind as audio
from experiments.reproduce.page import write_reproduction
from experiments.reproduce.statistics import read_reproduction
from experiments.training.contrastive import CARD, interpret, make_probe

#: File in an export folder with the options of its fitted probes.
PROBE_STAMP = "probed.json"


def judge(workdir: str | None, settings: Sequence[str], device: str) -> None:
    """Probe the exports without scores, and write the page and the score table."""
    folder = pathlib.Path(workdir or "runs/cells").expanduser()
    read_reproduction(folder)  # raises if the folder has no plan
    cards = folder.glob(f"*/exported-*/{CARD}")
    exports = sorted((int(card.parent.name.split("-")[-1]), card.parent) for card in cards)
    if not exports:
        raise UserError(f"{folder} does not contain exports: run cpc reproduce.train first")
    cluster.start(device)
    configs = {export: judged_config(export.parent, settings) for _, export in exports}
    by_seed = {config.seed: config for config in configs.values()}
    load = functools.cache(lambda seed: audio.load_data(by_seed[seed], print))
    for number, (step, export) in enumerate(exports, 1):
        print(f"[{number}/{len(exports)}] {export.parent.name}, step {step:,}", flush=True)
        config = configs[export]
        if read_object(export / PROBE_STAMP, []) != plain(config.probe):
            data = load(config.seed)
            check_same_data(export.parent, data.fingerprint())
            found = load_pretrained(export)
            variables = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), found.variables)
            probe = make_probe(audio, config, export.parent, data, make_model(found.module))
            probe(variables, step)
            write_sealed(export / PROBE_STAMP, config.probe)
    # Means over seeds of every score of c in percent, by cell and step.
    reproduction = read_reproduction(folder)
    runs = [(cell, run) for cell, found in reproduction.runs.items() for run in found]
    scores = pd.concat([run.scores.assign(cell=cell) for cell, run in runs], ignore_index=True)
    scores = scores[scores.features == "c"].assign(percent=100 * scores.value)
    columns = ["task", "data", "unit", "method", "metric"]
    table = scores.pivot_table("percent", ["cell", "step"], columns, sort=False).round(2)
    print(table.to_string())
    write_text(folder / "exports.csv", table.to_csv())
    print(f"page: {write_reproduction(folder)}")


def judged_config(path: pathlib.Path, settings: Sequence[str]) -> Config:
    """Return the config of a cell with ABX added, and with the user's data and probe keys."""
    names = [text.removeprefix("config.") for text in settings]
    if wrong := [name for name in names if not name.startswith(("data.", "probe."))]:
        raise UserError(
            f"--audio sets a key of the training (got {wrong[0]}): only set data and probe keys"
        )
    own = load_config(read_json(path / "config.json"), audio.KEYS)
    config = evaluation_config(own, audio.KEYS, [f"--config.{name}" for name in names])
    features = tuple(name for name in config.probe.features if name != "supervised")
    tasks = tuple(dict.fromkeys((*config.probe.tasks, "abx")))
    config = with_settings(config, {"probe.features": features, "probe.tasks": tasks})
    return interpret(audio, config).config


if __name__ == "__main__":
    SETTINGS = flags.DEFINE_multi_string("audio", [], "key=value for data or probes.")
    cli.run(lambda: judge(cli.WORKDIR.value, SETTINGS.value, cli.DEVICE.value))
