"""What every command shares: flags, errors in one sentence, and the run directory."""

import ctypes
import difflib
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

import jax
import numpy as np
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from cpc.data import cache_dir
from cpc.train import (
    await_verdict,
    choose_devices,
    enable_compilation_cache,
    is_first,
    join_processes,
    leave_failing,
    leave_processes,
    make_mesh,
    wait_for_all,
)
from cpc.types import UserError

#: The least that a number of a config can be.
LEAST = {
    "seed": 0,
    "num_steps": 1,
    "steps_per_launch": 1,
    "log_every": 1,
    "eval_every": 0,
    "save_every": 0,
    "data.speaker_level": 1,
    "data.test_fraction": 0,
    "data.window_samples": 1,
    "data.size": 1,
    "data.batch_size": 1,
    "data.num_threads": 0,
    "data.max_skipped_fraction": 0,
    "augment.crop": 1,
    **dict.fromkeys(
        (
            "augment.jitter",
            "augment.colour_drop",
            "augment.rotation_degrees",
            "augment.shear",
            "augment.elastic_pixels",
            "augment.brightness",
            "augment.contrast",
        ),
        0,
    ),
    "model.patch": 1,
    "model.stride": 1,
    "model.stages": 0,
    "model.first_offset": 0,
    "model.target_width": 0,
    "model.width": 1,
    "model.context_width": 1,
    "model.context_layers": 1,
    "model.num_offsets": 1,
    "negatives.window": 0,
    "negatives.groups": 1,
    "negatives.num_sampled": 0,
    "negatives.queue": 0,
    "negatives.momentum": 0,
    "negatives.target_entropy": 0,
    "loss.prior": 0,
    "loss.concentration": 0,
    "loss.margin": 0,
    "optim.warmup_steps": 0,
    "optim.accumulate": 1,
    "optim.ema_decay": 0,
    "evaluate.num_windows": 0,
    "evaluate.num_images": 0,
    "probe.regions": 1,
    "probe.num_images": 0,
    "probe.num_neighbours": 1,
    "probe.num_subsets": 1,
    "probe.hidden_width": 0,
    "probe.num_epochs": 1,
    "probe.minutes_per_speaker": 0,
    "probe.hours": 0,
    "probe.every": 0,
}
BELOW_ONE = (
    "data.test_fraction",
    "optim.ema_decay",
    "negatives.momentum",
    "negatives.target_entropy",
    "loss.prior",
)

DTYPES = ("float32", "bfloat16")

#: What a start, or a sweep of it, writes into a run directory before the data are read.
BEFORE_DATA = ("config.json", "environment.json", "log.txt", "failed.json")

#: A ConfigDict, whose attributes no type checker knows.
Config: TypeAlias = Any

WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of the run; the same command again resumes it."
)
DEVICE = flags.DEFINE_string("device", "auto", "auto, cpu, gpu or tpu.")


def define_config() -> flags.FlagHolder:
    """--config, a Python file with get_config(); --config.a.b=value sets one of its keys."""
    return config_flags.DEFINE_config_file(
        "config",
        None,
        "Config file, such as configs/audio_voices.py; --config.optim.learning_rate=1e-4 after it "
        "sets a key.",
    )


def run(main: Callable[[], None]) -> None:
    """Parse the flags and run; a mistake of the user ends in one sentence and status 2."""
    for name in ("config", "workdir", "device"):  # --help shows them beside the command's own
        if name in flags.FLAGS:
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    logging.set_verbosity(logging.ERROR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a log file shows each line as it comes
    app.run(lambda argv: _guard(main, argv), flags_parser=_parse)


def _guard(main, argv):
    if len(argv) > 1:
        fail(f"{argv[1]!r} is not a flag: flags begin with --; see --help")
    try:
        main()
        leave_processes()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        fail(f"cannot read or write{where}: {error.strerror or error}")
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except Exception:
        await_verdict()
        traceback.print_exc()
        leave_failing(1)
        sys.exit(1)


def fail(sentence: str, status: int = 2) -> NoReturn:
    """Say what is wrong and end."""
    sys.stdout.flush()
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)
    leave_failing(status)
    sys.exit(status)


def _parse(argv):
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        fail(f"{error}; see --help")
    except OSError as error:
        fail(f"cannot read the config file: {error}")
    except KeyError as error:
        fail(f"unknown config key {error.args[0] if error.args else error}")
    except AttributeError as error:
        name = "get_config" in str(error) and "the config file has no function get_config"
        fail(name or f"unknown config key: {error}")
    except Exception as error:  # a config file is Python, which can fail in any way
        fail(f"cannot read the config: {type(error).__name__}: {error}")


def start(device: str) -> jax.sharding.Mesh:
    """Join the other processes, if any, and choose the devices; returns the mesh.

    Compilations are cached, and freed memory is kept. Process 0 alone speaks. By environment
    variables the others are waited for up to CPC_JOIN_SECONDS, and one that hangs for
    CPC_HANG_SECONDS ends all (see `join_processes`).
    """
    join_processes(
        read_seconds("CPC_JOIN_SECONDS", 120), hang_seconds=read_seconds("CPC_HANG_SECONDS", 300)
    )
    if not is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 (open to the end)
    keep_freed_memory()
    compiled = cache_dir() / "compiled"
    try:
        compiled.mkdir(parents=True, exist_ok=True)
        enable_compilation_cache(compiled)
    except OSError as error:
        print(f"no cache of compiled programs: cannot write to {compiled} ({error.strerror})")
    devices = choose_devices(device)
    if jax.process_count() == 1:
        jax.config.update("jax_default_device", devices[0])
    return make_mesh(devices=devices)


def read_seconds(name: str, default: float) -> float:
    """An environment variable that holds a time."""
    text = os.environ.get(name, str(default))
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise UserError(f"{name} is {text!r}: it must be a number of seconds")
    return float(text)


def load_in_turn(load: Callable[[], Any]) -> Any:
    """load(), on process 0 first: what it prepares the others find."""
    loaded = load() if is_first() else None
    wait_for_all("data")
    return load() if loaded is None else loaded


def keep_freed_memory() -> None:
    """Let glibc keep big buffers: giving them back after every op costs a CPU step up to half.

    The sizes that mallopt(3) calls M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**28)):
            mallopt(option, value)


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("data.batch_size", 8), ... of a nested dictionary."""
    for key, value in config.items():
        if isinstance(value, dict | ConfigDict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check_config(config: Config, reference: Config) -> None:
    """The config has the reference's keys, no more and no fewer, with values of the same types."""
    given, known = dict(flatten(config)), dict(flatten(reference))
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise UserError(f"the config has an unknown key {key}{hint}")
    for key, value in known.items():
        if key not in given:
            raise UserError(f"the config lacks the key {key}: add it, such as {value!r}")
        if not isinstance(given[key], type(value)) and not (
            isinstance(value, float) and isinstance(given[key], int)
        ):
            raise UserError(
                f"the config's {key} is {given[key]!r}: it must be of type {type(value).__name__}, "
                f"such as {value!r}"
            )
    check_numbers(config)


def check_numbers(config: Config) -> None:
    """Every number lies where it can be meant."""
    given = dict(flatten(config))
    for key, least in LEAST.items():
        if key in given and not given[key] >= least:
            raise UserError(f"the config's {key} is {given[key]}: it must be {least} or more")
    for key in BELOW_ONE:
        if key in given and not given[key] < 1:
            raise UserError(f"the config's {key} is {given[key]}: it must be below 1")


def check_word(key: str, given: str, known: Collection[str]) -> None:
    """A word of a config is one of those that mean something."""
    if given not in known:
        raise UserError(f"{key} is {given!r}: choose one of {', '.join(known)}")


def check_probe(config: Config, words: Mapping[str, tuple[Collection[str], Collection[str]]]):
    """Probes at evaluations, and words (key -> given, known) that mean something."""
    every = config.probe.every
    if every and (not config.eval_every or every % config.eval_every):
        raise UserError(
            f"probe.every is {every}, but probes are fitted at evaluations, every "
            f"{config.eval_every} steps: make it a multiple of eval_every, or 0"
        )
    for key, (given, known) in words.items():
        for word in given:
            if word not in known:
                raise UserError(f"{key} has {word!r}: choose from {', '.join(known)}")


def open_run(workdir: str | None, config: Config, mesh: jax.sharding.Mesh) -> pathlib.Path:
    """Make the run directory, or find that it has begun a run of the same config."""
    if not workdir:
        raise UserError("no --workdir is given: name the directory of the run, such as runs/first")
    path = pathlib.Path(workdir).expanduser()
    environment = describe_environment(mesh)
    wanted = json.loads(config.to_json())
    try:
        path.mkdir(parents=True, exist_ok=True)
        # After a mistake in the data section nothing is there that could be mixed.
        begun = {item.name for item in path.iterdir()} - set(BEFORE_DATA)
        if begun and (path / "config.json").exists():
            check_same_config(read_json(path / "config.json"), wanted, path)
        write_json(path / "config.json", wanted)
        write_json(path / "environment.json", environment)
        if is_first():
            (path / "failed.json").unlink(missing_ok=True)  # a sweep's word about an earlier start
    except OSError as error:
        raise UserError(
            f"cannot write to the run directory {path} ({error.strerror}): choose another "
            "--workdir, or free space there"
        ) from error
    return path


def check_same_config(recorded: dict, wanted: dict, path: pathlib.Path) -> None:
    """One sentence that names the keys in which two configs differ."""
    a, b = dict(flatten(recorded)), dict(flatten(wanted))
    # What changes neither batches nor updates may change between two starts.
    free = ("probe.", "data.num_threads", "steps_per_launch")
    keys = {key for key in a.keys() | b.keys() if not key.startswith(free)}
    differing = [
        f"{key} is {a.get(key, 'absent')!r} there and {b.get(key, 'absent')!r} here"
        for key in sorted(keys)
        if a.get(key) != b.get(key)
    ]
    if differing:
        raise UserError(
            f"{path} holds a run of another config ({'; '.join(differing)}): choose another "
            "--workdir, or give that config"
        )


def describe_environment(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Versions, devices, revision and command: what a figure was measured on."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "devices": [device.device_kind for device in mesh.devices.flat],
        "processes": jax.process_count(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "git_revision": git_revision(),
        "host": platform.node(),
        "pid": os.getpid(),
        "command": command_line(),
    }


def write_skipped(workdir: pathlib.Path, skipped: Iterable[tuple[str, str]]) -> None:
    """List what was left out of the data, and why, in the run directory."""
    if not is_first():
        return
    lines = [f"{path}: {reason}\n" for path, reason in skipped]
    (workdir / "skipped.txt").write_text("".join(lines), encoding="utf-8", errors="replace")


def git_revision() -> str | None:
    """The commit of this checkout; None without git."""
    folder = pathlib.Path(__file__).parent
    try:
        git = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
    except OSError:
        return None
    return git.stdout.strip() or None


def command_line() -> str:
    """The command that was given, to be given again."""
    module = sys.modules["__main__"].__spec__
    python = os.path.relpath(sys.executable)
    python = sys.executable if python.startswith("..") else python
    name = ["-m", module.name.removesuffix(".__main__")] if module else [sys.argv[0]]
    return shlex.join([python, *name, *sys.argv[1:]])


def read_config(workdir: pathlib.Path) -> Config:
    """The config that a run recorded."""
    return ConfigDict(read_json(workdir / "config.json"))


def read_json(path: pathlib.Path) -> Any:
    """A json file of a run."""
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"cannot read {path} ({error}): is this the directory of a run?") from error


def write_json(path: pathlib.Path, value: Any) -> None:
    """Write whole or not at all; of several processes the first does."""
    if not is_first():
        return
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    part.replace(path)


def write_arrays(path: pathlib.Path, **arrays: Any) -> None:
    """An .npz, written whole or not at all."""
    part = path.with_name(path.stem + ".part.npz")
    np.savez(part, **arrays)
    part.replace(path)
