r"""Theory as experiments: each claim of the noise-contrastive family with what comes out.

    cpc nce --workdir runs/nce
    cpc nce --workdir runs/nce-quick --quick

Nothing is trained on data and nothing is fetched: small problems, most of them summed exactly. The
run directory gets nce.json, figures and a page that says under each figure what was expected, what
was measured, and whether they agree. The same command again resumes.
"""

import pathlib
from collections.abc import Callable

import numpy as np
from absl import flags

from configs.keys import Key, make_config
from experiments.command import cli, cluster, run_dir
from experiments.studies.nce import bound, hardness, noise, sampled
from experiments.studies.nce.findings import Finding, format_table, measure_all

SEED = 0
KEYS = {
    "kind": Key("nce", "what is measured"),
    "quick": Key(False, "small sizes"),
    "seed": Key(SEED, "of all randomness"),
}


def experiments(quick: bool) -> dict[str, Callable[[], Finding]]:
    """Return each experiment with its numbers, in the order of the page."""

    def size(full, small):
        return small if quick else full

    cosines = np.random.default_rng(SEED).normal(0, 0.2, 128).clip(-1, 1)
    return {
        "likelihood_limit": lambda: noise.likelihood_limit(
            10, size((1, 3, 10, 30, 100, 300, 1000, 3000), (1, 10, 100, 1000)), SEED
        ),
        "noise_modes": lambda: noise.noise_modes(
            size((100, 1000, 10_000, 100_000), (100, 1000)),
            4,
            size(100, 200),
            (1, 5, 50),
            SEED,
        ),
        "sampled_softmax": lambda: sampled.sampled_softmax_bias(
            size((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32))
        ),
        "identity": lambda: bound.identity(0.8, (2, 3, 5, 10, 30, 100)),
        "dependent_negatives": lambda: bound.dependent_negatives(
            0.6, 999, (1, 3, 9, 27, 111, 333, 999)
        ),
        "bias_against_n": lambda: bound.bias_against_n(
            (2.0, 4.0, 6.0, 8.0, 10.0),
            size((64, 128, 256, 512, 1024, 2048), (64, 256)),
            size(2**15, 2**12),
            SEED,
        ),
        "threshold": lambda: hardness.threshold(
            0.2, 0.1, size((4, 16, 64, 256, 1024, 4096), (4, 64)), 601
        ),
        "negatives_needed": lambda: hardness.negatives_needed(
            size((0.1, 0.05, 0.01, 0.001), (0.1, 0.05)),
            (0.5, 0.9, 0.95, 0.99),
            size(4000, 1000),
            SEED,
        ),
        "temperature": lambda: hardness.temperature(
            cosines, np.geomspace(0.001, 10, size(61, 21)), (0.25, 0.5, 0.75)
        ),
    }


def run(workdir: str | None, quick: bool = False, device: str = "auto") -> None:
    """Measure what is not measured yet, and write the page."""
    mesh = cluster.start(device)
    config = make_config(KEYS)
    config.quick = quick
    with run_dir.open_run(workdir, config, KEYS, mesh) as folder:
        findings = measure_all(folder / "nce.json", experiments(quick), 20)
        print(f"\n{format_table(findings)}\n")
        report(folder)


def report(folder: pathlib.Path) -> None:
    """Write the page, and say where everything is."""
    from experiments.studies.nce.page import write_theory_report  # matplotlib takes seconds

    page = write_theory_report(folder)
    print(f"table: {folder / 'nce.json'}")
    print(f"figures: {folder / 'figures'}")
    print(f"report: {page}")


if __name__ == "__main__":
    QUICK = flags.DEFINE_bool("quick", False, "Small sizes, for a look: a fraction of the time.")
    cli.run(lambda: run(cli.WORKDIR.value, QUICK.value, cli.DEVICE.value))
