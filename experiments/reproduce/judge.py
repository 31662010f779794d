r"""Probe the weights that `cpc reproduce.train` exported, and write the page of their verdicts.

    cpc reproduce.judge --workdir cells
    cpc reproduce.judge --workdir cells --audio data.source=voices --audio "probe.features=('c',)"

Needs no GPU. Each cell gets the probes of `cpc reproduce` and ABX, at each step that has weights;
the supervised network, which does not depend on them, is left out. --audio sets keys of the data
and the probes, for weights that were trained on a copy of the recordings: their names and split
must be the same. The page is that of `cpc reproduce`; exports.csv has every score of c by step.
The same command again continues.
"""

import functools
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pandas as pd
from absl import flags

from cpc import models
from cpc.files import plain, read_json, read_object, write_sealed, write_text
from cpc.results import Frame
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import Config, check_config, judged_on, load_config, with_settings
from experiments.command.run_dir import check_same_data
from experiments.kinds.audio import kind as audio
from experiments.reproduce.page import write_reproduction
from experiments.reproduce.statistics import Reproduction, read_reproduction
from experiments.training.contrastive import CARD, make_probe

#: In the folder of an export: the options of the probes that have been fitted on it.
PROBED = "probed.json"


def judge(workdir: str | None, settings: Sequence[str], device: str) -> None:
    """Probe every export that is not probed yet, and write the page and the table of scores."""
    if not workdir:
        raise UserError("--workdir is required, e.g. --workdir runs/cells")
    folder = pathlib.Path(workdir).expanduser()
    read_reproduction(folder)  # raises if the folder has no plan
    exports = sorted(folder.glob(f"*/exported-*/{CARD}"), key=lambda card: step_of(card.parent))
    if not exports:
        raise UserError(f"{folder} has no exports: train cells with cpc reproduce.train first")
    cluster.start(device)
    configs = {card.parts[-3]: judged_config(card.parents[1], settings) for card in exports}
    by_seed = {config.seed: config for config in configs.values()}
    load = functools.cache(lambda seed: audio.load_data(by_seed[seed], print))
    for number, card in enumerate(exports, 1):
        path, config = card.parents[1], configs[card.parts[-3]]
        print(f"[{number}/{len(exports)}] {path.name}, step {step_of(card.parent):,}", flush=True)
        if read_object(card.with_name(PROBED), []) != plain(config.probe):
            data = load(config.seed)
            check_same_data(path, data.fingerprint())
            probe_export(config, card.parent, data)
    found = read_reproduction(folder)
    table = exports_table(found)
    print(table.to_string())
    write_text(folder / "exports.csv", table.to_csv())
    print(f"page: {write_reproduction(folder)}")


def step_of(export: pathlib.Path) -> int:
    """Return the step of an export.

    >>> step_of(pathlib.Path("mixed,seed=0/exported-1000"))
    1000
    """
    return int(export.name.rpartition("-")[2])


def judged_config(path: pathlib.Path, settings: Sequence[str]) -> Config:
    """Return the config of a cell with the user's keys of data and probes, and ABX."""
    own = load_config(read_json(path / "config.json"), audio.KEYS)
    given = [f"--config.{text.removeprefix('config.')}" for text in settings]
    config = judged_on(own, audio.KEYS, given)
    features = tuple(name for name in config.probe.features if name != "supervised")
    tasks = tuple(dict.fromkeys((*config.probe.tasks, "abx")))
    config = with_settings(config, {"probe.features": features, "probe.tasks": tasks})
    others = {"data": config.data, "probe": config.probe}
    if plain({**own, **others}) != plain(config):
        raise UserError(
            f"--audio sets keys of the training (got {' '.join(settings)}): set keys of data and "
            "probe alone"
        )
    check_config(config, audio.KEYS)
    audio.geometry(config)  # checks the options of the probes
    return config


def probe_export(config: Config, export: pathlib.Path, data: audio.AudioData) -> None:
    """Fit the probes of one export and record their scores in the cell."""
    pretrained = models.load_pretrained(export)
    variables = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), pretrained.variables)
    probe = make_probe(audio, config, export.parent, data, models.make_model(pretrained.module))
    probe(variables, step_of(export))
    write_sealed(export / PROBED, config.probe)


def exports_table(reproduction: Reproduction) -> Frame:
    """Return the mean over seeds of every score of c in percent, by cell and step."""
    frames = [
        run.scores.assign(cell=cell) for cell, runs in reproduction.runs.items() for run in runs
    ]
    scores = pd.concat(frames)
    scores = scores[scores.features == "c"].assign(percent=100 * scores.value)
    columns = ["task", "data", "unit", "method", "metric"]
    return scores.pivot_table("percent", ["cell", "step"], columns, sort=False).round(2)


if __name__ == "__main__":
    SETTINGS = flags.DEFINE_multi_string("audio", [], "key=value of data or probe.")
    cli.run(lambda: judge(cli.WORKDIR.value, SETTINGS.value, cli.DEVICE.value))
