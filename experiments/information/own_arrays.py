r"""Estimate the mutual information of two arrays, with intervals.

    cpc information --x a.npy --y b.npy
    cpc information --x a.npy --y b.npy --workdir runs/mine \
        --config.num_steps=4000 --config.widths="(256, 256)"
    cpc information --x a.npy --y b.npy --quick

The files contain paired rows, (n, dx) and (n, dy), as .npy, .npz, .csv or .parquet. Estimators are
trained on some rows and evaluated on others. Each estimate has an interval, a ceiling, its value
for shuffled y, and a line over 1 / n that predicts the effect of more rows. Writes
information.html, .md and .json, and scores.json, into --workdir, by default runs/information (with
--quick, runs/information-quick). Results of other files or settings are not overwritten. Keys are
defined in configs/arrays.py.
"""

import pathlib
import time

from absl import flags

import configs.arrays
from configs.keys import Key, make_config
from cpc.results import write_scores
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import Config, with_settings
from experiments.command.run_dir import open_run
from experiments.information.arrays import Pairs, read_pairs
from experiments.information.estimators import check_estimation
from experiments.information.rotations import measure

#: Recorded keys: the keys of the config, and the two files.
RECORDED = {
    **configs.arrays.KEYS,
    "x": Key("", "file with x", is_path=True),
    "y": Key("", "file with y", is_path=True),
}
QUICK = {
    "num_steps": 60, "read_every": 30, "critics": ("separable",), "widths": (16,),
    "estimators": ("info_nce", "js"), "max_rows": 1000,
}  # fmt: skip


def run(config: Config, x: str, y: str, workdir: str, device: str = "auto") -> None:
    """Estimate the information of two files, and write the report."""
    check(config)
    pairs = read_pairs(x, y, max_rows=config.max_rows, seed=config.seed)
    paths = [pathlib.Path(path).expanduser().resolve() for path in (x, y)]
    recorded = {**config, "x": str(paths[0]), "y": str(paths[1])}
    recorded, mesh = with_settings(make_config(RECORDED), recorded), cluster.start(device)
    with open_run(workdir, recorded, mesh) as folder:
        report(config, pairs, (paths[0].name, paths[1].name), folder)


def report(config: Config, pairs: Pairs, names: tuple[str, str], folder: pathlib.Path) -> None:
    """Estimate the information of pairs, and write scores and page into a folder."""
    begin, num_rows = time.perf_counter(), len(pairs.x)
    dims = pairs.x.shape[1], pairs.y.shape[1]
    print(f"{num_rows:,} rows of {dims[0]} + {dims[1]} columns", *pairs.remarks, sep="\n")

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begin:4.0f} s  {text}")

    readings = measure(pairs, config, say)
    from experiments.information import page  # slow: it imports matplotlib

    write_scores(folder, page.to_scores(readings, ", ".join(names), config.seed, num_rows))
    claims = page.claim(readings, num_rows, pairs.identity)
    sides = (f"{z}: {name}, {dim} columns" for z, name, dim in zip("xy", names, dims, strict=True))
    lead = "; ".join([*sides, f"{num_rows:,} rows."])
    path = page.write_arrays_report(folder, lead, readings, [*claims, *pairs.remarks], num_rows)
    print(*claims, f"report: {path}", sep="\n")


def check(config: Config) -> None:
    """Validate a config without reading the arrays."""
    check_estimation(config, configs.arrays.KEYS)
    if "info_nce" not in config.estimators:
        raise UserError("estimators must contain info_nce, which the claim needs: add info_nce")


def main(config: Config) -> None:
    """Estimate the information of the files given by --x and --y."""
    if not X.value or not Y.value:
        raise UserError("--x and --y are required, e.g. --x a.npy --y b.npy")
    if IS_QUICK.value:
        config = with_settings(config, QUICK)
    default = "runs/information-quick" if IS_QUICK.value else "runs/information"
    run(config, X.value, Y.value, cli.WORKDIR.value or default, cli.DEVICE.value)


if __name__ == "__main__":
    X = flags.DEFINE_string("x", None, "File with x, one sample per row.")
    Y = flags.DEFINE_string("y", None, "File with y, whose row i is paired with row i of x.")
    IS_QUICK = flags.DEFINE_bool("quick", False, "Use few steps, rows and estimators, for a test.")
    CONFIG = cli.define_config(configs.arrays.__file__)
    cli.run(lambda: main(CONFIG.value))
