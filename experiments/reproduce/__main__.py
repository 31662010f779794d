r"""Reproduce the paper's tables and figures: sweeps of ordinary runs, and a page of both.

    cpc reproduce --table 2 --scale small --data voices
    cpc reproduce --figure 3 --scale smoke --workdir runs/smoke
    cpc reproduce --all --scale paper --workdir runs/paper \
        --audio data.path=LibriSpeech/train-clean-100 --audio data.phones=aligned_phones.txt

Tables 1 to 4; figures 2, 3, 5 and 6; and what the paper lacks: --table open (a cell for each choice
that the paper leaves open) and --table bound (log N - L by the number of negatives, and against the
probes).

smoke: whether everything runs, in minutes, on synthetic sound. small: the orders of the rows on
the demo's voices, 2 hours on 2 cores by estimate, times --seeds. medium: the same, wider and
with more steps, 5.5 hours by estimate. paper: the paper's sizes, never run. With --seeds 3
verdicts also count the scatter of seeds. Table 5 (text) is not reproduced.

Writes all cells, and reproduction.html, .md and .json, into --workdir: runs/reproduced-SCALE-DATA,
unless another is named. Tables share cells: another --table into the same --workdir adds the
missing ones. The same command again resumes. While it runs: cpc status WORKDIR.
"""

from absl import flags

from experiments.command import cli
from experiments.reproduce.cells import DATA, KINDS, SCALES
from experiments.reproduce.folder import find_parts, reproduce

if __name__ == "__main__":
    TABLE = flags.DEFINE_multi_enum("table", [], ["1", "2", "3", "4", "open", "bound"], "A table.")
    FIGURE = flags.DEFINE_multi_enum("figure", [], ["2", "3", "5", "6"], "A figure.")
    ALL = flags.DEFINE_bool("all", False, "Every table and figure.")
    SCALE = flags.DEFINE_enum("scale", "small", list(SCALES), "How large.")
    DATASET = flags.DEFINE_enum("data", None, list(DATA), "Of audio; each scale has a default.")
    SEEDS = flags.DEFINE_integer("seeds", 1, "Number of seeds of each cell.", lower_bound=1)
    JOBS = flags.DEFINE_integer(
        "jobs", 1, "Cells at a time, sharing cores and GPUs.", lower_bound=1
    )
    SETTINGS = {
        kind: flags.DEFINE_multi_string(kind, [], f"key=value of all {kind} cells: data.path=...")
        for kind in KINDS
    }
    DRY_RUN = flags.DEFINE_bool("dry-run", False, "Print every command and end.")
    cli.run(
        lambda: reproduce(
            find_parts(TABLE.value, FIGURE.value, ALL.value), SCALE.value, DATASET.value,
            cli.WORKDIR.value, {kind: flag.value for kind, flag in SETTINGS.items()}, SEEDS.value,
            JOBS.value, cli.DEVICE.value, DRY_RUN.value,
        )
    )  # fmt: skip
