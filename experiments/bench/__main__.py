r"""Measure the speed of training relative to the limits of the machine, as a table and JSON.

    cpc bench --config audio_voices --json bench.json

Takes some minutes, on an otherwise idle machine. `make demo` sets the allocator. To compare with
`make demo`, set it as well:

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cpc bench

`--part step --part input` measures only these parts. PyTorch is compared if it can be imported here
or by the Python in $CPC_TORCH_PYTHON:

    CPC_TORCH_PYTHON=torchenv/bin/python cpc bench --part torch --part criterion

Skip-gram is measured only with `--part text`, and compared with gensim if gensim can be imported
here or by the Python in $CPC_GENSIM_PYTHON. This downloads 50 MB of text and word pairs:

    CPC_GENSIM_PYTHON=gensimenv/bin/python cpc bench --part text

The step is the same as in `experiments.train`, and its times are divided by those of a matrix
product in the same round. The recordings of the config are used if they are prepared, otherwise
synthetic sound.
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
from experiments.bench import step, timing, versus, words
from experiments.command import cli, cluster, run_dir
from experiments.command.config import Config, check_config, with_settings
from experiments.kinds.audio.data import load_data

JSON = flags.DEFINE_string("json", None, "File to write the figures to.")
PARTS = ("step", "input", "torch", "criterion")
PART = flags.DEFINE_multi_enum(
    "part", None, (*PARTS, "text"), "Part to measure. Default: all except text."
)
QUICK = flags.DEFINE_bool("quick", False, "Use fewer rounds, for a test without valid figures.")


def main(given: Config) -> None:
    """Measure the selected parts, and print and write the figures."""
    config = choose_config(given)
    path = pathlib.Path(JSON.value) if JSON.value else None
    if path and not path.parent.is_dir():
        raise UserError(f"the folder of --json {path} does not exist: create {path.parent} first")
    # Leave memory on the accelerator for child processes.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    mesh = cluster.start(cli.DEVICE.value)
    check_batch_size(config.data.batch_size, mesh)
    data = load_data(config, print)
    load_average = os.getloadavg()[0]
    # Child processes use the device that "auto" selects here.
    device, quick = mesh.devices.flat[0].platform, QUICK.value
    num_rounds, num_processes, num_calls = (2, 1, 1) if quick else (10, 3, 3)
    sizes = versus.NUM_CANDIDATES[: 1 if quick else None]
    measure = {
        "step": lambda: step.step_rows(config, data, mesh, num_rounds),
        "input": lambda: step.input_rows(config, data, num_rounds),
        "torch": lambda: versus.torch_rows(device, num_processes, num_calls, alone=not quick),
        "criterion": lambda: versus.info_nce_rows(device, sizes, num_processes, num_calls),
        "text": lambda: words.word_rows(*((1, 1) if quick else (5, 3))),
    }
    measured = []
    for part in PART.value or PARTS:
        print(f"measuring: {part}")
        measured += measure[part]()
    conditions = {
        "environment": run_dir.describe_environment(mesh),
        "allocator": describe_allocator(),
        "load_average_before": load_average,
        "quick": quick,
    }
    environment = conditions["environment"]
    allocator = ", ".join(f"{k}={v}" for k, v in conditions["allocator"].items() if v != "")
    busy = "; the machine was busy: times are too long" if load_average > 0.5 else ""
    print(
        f"\n{timing.format_table(measured)}\n\n{environment['cpu_count']} cores, "
        f"{environment['devices']}, jax {environment['jax']}; allocator: {allocator}\n"
        f"load average before: {load_average:.1f}{busy}"
    )
    if path:
        described = [timing.describe(row) for row in measured]
        write_json(path, {**conditions, "config": config.to_dict(), "rows": described})
        print(f"figures: {path}")


def choose_config(given: Config) -> Config:
    """Return the config of --config or the demo, with synthetic sound if data are missing."""
    if cli.WORKDIR.value:
        raise UserError("--workdir does not apply to the bench: set --json to a file instead")
    config = given or audio_voices.get_config()
    check_config(config, KEYS)
    if config.freeze:
        raise UserError(f"the bench trains all parts (got freeze={config.freeze}): remove freeze")
    if config.data.source == "voices" and not voices.is_prepared():
        print("the packaged voices are not prepared here: measuring on the synthetic source")
        config = with_settings(config, {"data.source": "synthetic"})
    return config


def describe_allocator() -> dict[str, Any]:
    """Return the settings of the allocator, which affect the cost of large buffers on a CPU."""
    names = ("GLIBC_TUNABLES", "LD_PRELOAD", *(n for n in os.environ if n.startswith("MALLOC_")))
    return {
        "freed_memory_kept": platform.libc_ver()[0] == "glibc",
        "beside_torch": timing.ALLOCATOR,
        **{name: os.environ.get(name, "") for name in names},
    }


if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: main(CONFIG.value))
