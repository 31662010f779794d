r"""How fast training is on this machine, against what the machine can do: a table, and json.

    python -m experiments.bench --config configs/audio_voices.py --json bench.json

Takes some minutes; times of a busy machine mean little, so let it run alone. `make demo` sets
the allocator, and so should what is compared with it:

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python -m experiments.bench

`--part step --part input` measures some of it only; see --help. Against PyTorch, where it is
importable here or in the Python that $CPC_TORCH_PYTHON names:

    CPC_TORCH_PYTHON=torchenv/bin/python python -m experiments.bench --part torch

The step with every choice of negatives, the step with augmentation beside one without, and
InfoNCE over 131,072 candidates (1,048,576 off the CPU) are measured only where they are asked for:

    python -m experiments.bench --part large --part negatives --part augmentation

and so is skip-gram, against gensim where it is importable here or in the Python that
$CPC_GENSIM_PYTHON names (it fetches 50 MB of text and word pairs):

    CPC_GENSIM_PYTHON=gensimenv/bin/python python -m experiments.bench --part text

Agents beside a random policy, and what contrastive prediction adds to them, likewise:

    python -m experiments.bench --part rl

The step is built as `experiments.train` builds it, from the same config, and each of its timings is
divided by that of a matrix product made at the same moment. Recordings that the config names are
used if they are prepared, else sound that is made up.
"""

import os
import pathlib
import platform
from typing import Any

from absl import flags

from configs import audio_voices
from configs.audio import KEYS
from cpc.data.sources import voices
from cpc.files import write_json
from cpc.train import check_batch_size
from cpc.types import UserError
from experiments.bench import (
    abx,
    agents,
    augmentation,
    criterion,
    draws,
    images,
    negatives,
    rows,
    scaling,
    table,
    versus,
    words,
)
from experiments.bench.process import ALLOCATOR
from experiments.command import cli, cluster, run_dir
from experiments.command.config import Config, check_config
from experiments.kinds.audio.data import load_data

JSON = flags.DEFINE_string("json", None, "File to write the figures to.")
PARTS = ("step", "input", "start", "torch", "criterion", "draws", "images", "scaling", "abx")
PART = flags.DEFINE_multi_enum(
    "part",
    None,
    (*PARTS, "negatives", "augmentation", "text", "large", "rl"),
    "What to measure; by default all but the last five, which take minutes each on two cores.",
)
QUICK = flags.DEFINE_bool("quick", False, "Fewer rounds: to see that it works, not to quote.")


def main(given: Config) -> None:
    """Measure, print, write."""
    config = choose_config(given)
    path = check_json_path(JSON.value)
    # The processes that this one starts need the accelerator's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    mesh = cluster.start(cli.DEVICE.value)
    check_batch_size(config.data.batch_size, mesh)
    data = load_data(config, print)
    load_average = os.getloadavg()[0]
    effort = rows.QUICK if QUICK.value else rows.FULL
    # What "auto" found here is what they are to find.
    device, num_rounds = mesh.devices.flat[0].platform, effort.num_rounds
    measure = {
        "step": lambda: rows.step_rows(config, data, mesh, effort),
        "input": lambda: rows.input_rows(config, data, mesh, effort),
        "start": lambda: rows.start_rows(config, device),
        "torch": lambda: versus.torch_rows(
            device, effort.num_processes, effort.num_calls, alone=not QUICK.value
        ),
        "criterion": lambda: criterion.criterion_rows(
            device, effort.num_candidates, effort.num_processes, effort.num_calls
        ),
        "draws": lambda: [draws.draw_row(num_rounds)],
        "images": lambda: images.image_rows(
            mesh, effort.num_batches, num_rounds, effort.num_images
        ),
        "scaling": scaling.scaling_rows,
        "abx": lambda: [abx.abx_row(1 if QUICK.value else 3)],
        "negatives": lambda: negatives.negative_rows(config, data, mesh, num_rounds),
        "augmentation": lambda: augmentation.augmentation_rows(config, data, mesh, num_rounds),
        "text": lambda: words.word_rows(1 if QUICK.value else 5),
        "large": lambda: criterion.large_rows(device),
        "rl": lambda: agents.agent_rows(num_rounds, 5 if QUICK.value else 20),
    }
    measured = []
    for part in PART.value or PARTS:
        print(f"measuring: {part}")
        measured += measure[part]()
    conditions = {
        "environment": run_dir.describe_environment(mesh),
        "allocator": describe_allocator(),
        "load_average_before": load_average,
        "quick": QUICK.value,
    }
    print(f"\n{table.format_table(measured)}\n\n{describe_conditions(conditions)}")
    if path:
        described = [table.describe(row) for row in measured]
        write_json(path, {**conditions, "config": config.to_dict(), "rows": described})
        print(f"figures: {path}")


def choose_config(given: Config) -> Config:
    """The config of --config or of the demo, on sound that is here."""
    if cli.WORKDIR.value:
        raise UserError("the bench has no --workdir: name a file for the figures by --json")
    config = given or audio_voices.get_config()
    check_config(config, KEYS)
    if config.data.source == "voices" and not voices.is_prepared():
        print("the packaged voices are not prepared here: measuring on the synthetic source")
        config = config.copy_and_resolve_references()
        config.data.source = "synthetic"
    return config


def check_json_path(name: str | None) -> pathlib.Path | None:
    """Fail before the measurement, not after it."""
    if not name:
        return None
    path = pathlib.Path(name)
    if not path.parent.is_dir():
        raise UserError(f"--json names {name}, but {path.parent} is not a folder: make it first")
    return path


def describe_allocator() -> dict[str, Any]:
    """What decides how dear a big buffer is on a CPU."""
    names = ("GLIBC_TUNABLES", "LD_PRELOAD", *(n for n in os.environ if n.startswith("MALLOC_")))
    return {
        "freed_memory_kept": platform.libc_ver()[0] == "glibc",
        "beside_torch": ALLOCATOR,
        **{name: os.environ.get(name, "") for name in names},
    }


def describe_conditions(conditions: dict[str, Any]) -> str:
    """What the figures depend on, for the reader."""
    environment, load = conditions["environment"], conditions["load_average_before"]
    allocator = ", ".join(f"{k}={v}" for k, v in conditions["allocator"].items() if v != "")
    busy = "; the machine was busy: times are too long" if load > 0.5 else ""
    return (
        f"{environment['cpu_count']} cores, {environment['devices']}, jax {environment['jax']}; "
        f"allocator: {allocator}\nload average before: {load:.1f}{busy}"
    )


if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: main(CONFIG.value))
