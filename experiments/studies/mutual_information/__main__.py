r"""How much do two arrays tell of each other, and how sure is that?

    python -m experiments.studies.mutual_information --x a.npy --y b.npy
    python -m experiments.studies.mutual_information --x a.npy --y b.npy --workdir runs/mine \
        --config.num_steps=4000 --config.widths="(256, 256)"
    python -m experiments.studies.mutual_information --x a.npy --y b.npy --quick

Row i of one file belongs to row i of the other: (n, dx) and (n, dy) in .npy, .npz, .csv or
.parquet. Every estimator of the project is trained on some rows and read on others, with interval,
ceiling, what it reads with y shuffled, and the line over 1 / n that shows what more rows would
change. The folder, runs/information unless --workdir names another, gets information.html, .md
and .json, and scores.json. All keys are in configs/arrays.py.
"""

import pathlib
import time

from absl import flags

import configs.arrays
from cpc.files import write_sealed
from cpc.results import write_scores
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import Config, check_config, with_settings
from experiments.command.run_dir import describe_environment
from experiments.mutual_information.methods import make_methods
from experiments.studies.mutual_information.arrays import read_pairs
from experiments.studies.mutual_information.findings import claim
from experiments.studies.mutual_information.fit import measure

#: To see that it works.
QUICK = {
    "num_steps": 60,
    "read_every": 30,
    "critics": ("separable",),
    "widths": (16,),
    "estimators": ("info_nce", "js"),
    "max_rows": 1000,
}


def run(config: Config, x: str, y: str, workdir: str, device: str = "auto") -> None:
    """Check, measure, report."""
    check(config)
    pairs = read_pairs(x, y, max_rows=config.max_rows, seed=config.seed)
    environment = describe_environment(cluster.start(device))
    folder, begin = pathlib.Path(workdir).expanduser(), time.perf_counter()
    names = pathlib.Path(x).name, pathlib.Path(y).name
    shape = len(pairs.x), pairs.x.shape[1], pairs.y.shape[1]
    print(f"{shape[0]:,} rows of {shape[1]} + {shape[2]} columns", *pairs.remarks, sep="\n")
    readings = measure(
        pairs, config, lambda said: print(f"{time.perf_counter() - begin:4.0f} s  {said}")
    )
    from cpc.report.engine import cells  # matplotlib takes seconds
    from experiments.studies.mutual_information import page

    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / "config.json", config)
    write_sealed(folder / "environment.json", environment)
    write_scores(folder, page.to_scores(readings, ", ".join(names), config, shape[0]))
    path = page.write_study(folder, names, shape, readings, pairs.remarks, environment, config)
    table = page.reading_table(readings, shape[0])
    lines = [[str(name) for name in table.frame.columns], *cells(table)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    print(*claim(readings, shape[0]), f"report: {path}", sep="\n")


def check(config: Config) -> None:
    """Check all of a config that needs no data."""
    check_config(config, configs.arrays.KEYS)
    if config.num_steps % config.read_every:
        raise UserError(
            f"the config's read_every is {config.read_every}: it must divide num_steps, "
            f"{config.num_steps}"
        )
    for key in ("critics", "widths", "joint_widths"):
        if not config[key]:
            raise UserError(f"the config's {key} is empty: name one or more")
    if "info_nce" not in config.estimators:
        raise UserError("the config's estimators lack info_nce, on which the claim rests: add it")
    make_methods(config)


def main(config: Config) -> None:
    """Take the flags."""
    if not X.value or not Y.value:
        raise UserError("name two files of numbers, --x a.npy --y b.npy")
    if IS_QUICK.value:
        config = with_settings(config, QUICK)
    run(config, X.value, Y.value, cli.WORKDIR.value or "runs/information", cli.DEVICE.value)


if __name__ == "__main__":
    X = flags.DEFINE_string("x", None, "File of the one side: a row a sample.")
    Y = flags.DEFINE_string("y", None, "File of the other: row i belongs to row i of x.")
    IS_QUICK = flags.DEFINE_bool("quick", False, "Few steps, rows and estimators: to see it work.")
    CONFIG = cli.define_config(configs.arrays.__file__)
    cli.run(lambda: main(CONFIG.value))
