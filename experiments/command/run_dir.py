"""Run directories, with the config, environment, state and data identity of a run."""

import contextlib
import importlib.metadata
import os
import pathlib
import platform
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import jax
import numpy as np

from cpc import files
from cpc.data.walk import check_name
from cpc.results.score import read_records
from cpc.train import Stopped, is_first, read_identity, read_metadata, wait_for_all
from cpc.types import UserError
from experiments.command import lock
from experiments.command.cluster import describe_version
from experiments.command.config import Config, check_keys
from experiments.command.names import command_line

#: File with the state of a run.
STATE = "state.json"
#: Values in this file that describe the last step and evaluation.
PROGRESS = ("step", "num_steps", "steps_per_second", "nats")
#: Files written before the data are read.
BEFORE_DATA = ("config.json", "environment.json", "log.txt", STATE, files.RUN_LOCK)

#: File with the identity of the training and test data.
MEMBERS = "data.json"
#: File with the weights that a run starts from.
START = "start_from.json"
#: Files written between reading the data and the first step, which are specific to the config.
BEFORE_STEPS = (START, "audit.json", "truth.json", "vocabulary.tsv", "augmentation", "probes")
#: Other files written before the first step, which the next start replaces.
REPLACED = (MEMBERS, "skipped.txt", "checkpoints", "metrics.jsonl", "tensorboard")


@contextlib.contextmanager
def open_run(
    workdir: str | None, config: Config, mesh: jax.sharding.Mesh
) -> Iterator[pathlib.Path]:
    """Lock and yield a run directory, and record the state at the end.

    The directory may be new, or contain a run with the same config.
    """
    if not workdir:
        raise UserError("--workdir is required, e.g. --workdir runs/first")
    path = pathlib.Path(workdir).expanduser()
    check_name(path.absolute())  # orbax needs a valid name
    check_separate(path, config)
    environment = describe_environment(mesh)
    with contextlib.ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            if is_first():
                stack.enter_context(lock.hold(path))
            is_begun = has_begun(path)
            resumes = is_begun and check_same_run(path, config)
            if is_first():
                if resumes:
                    files.remove_parts(path)
                elif not is_begun:
                    remove_leftovers(path)
                before = files.read_object(path / "environment.json", []) if resumes else None
                environment["id"] = (before or {}).get("id") or secrets.token_hex(8)
                files.write_sealed(path / "config.json", config, is_durable=True)
                files.write_sealed(path / "environment.json", environment)
                record_state(path, "running")
        except OSError as error:
            raise UserError(
                f"cannot write to the run directory {path} ({error.strerror or error}): "
                f"{files.advise(error)}, or choose another --workdir"
            ) from error
        end = {"state": "stopped"}
        try:
            yield path
            end = {"state": "finished" if any(path.glob("*.html")) else "stopped"}
        except Stopped:  # by a signal: the same command resumes the run
            raise
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            end = {"state": "failed", "error": message}
            raise
        finally:
            if is_first() and read_state(path).get("state") == "running":
                record_state(path, **end)


def has_begun(path: pathlib.Path) -> bool:
    """Return whether a directory has training steps, or files that a mere start does not write."""
    names = {item.name for item in path.iterdir()}
    probe_files = {item.name for item in path.glob("probes/*")} - {"augmented.npz"}
    return bool(
        names - {*BEFORE_DATA, *BEFORE_STEPS, *REPLACED}
        or probe_files
        or any(item.name.isdecimal() for item in path.glob("checkpoints/*"))
        or any(record["step"] > 0 for record in read_records(path, []))
    )


def remove_leftovers(path: pathlib.Path) -> None:
    """Remove the files of a start without steps, since its config or data may have differed."""
    if (path / "config.json").exists():  # else the directory is not a run
        for name in BEFORE_STEPS:
            for file in (path / name, *path.glob(f"{name}/*")):
                if file.is_file():
                    file.unlink()


def check_same_run(path: pathlib.Path, config: Config) -> bool:
    """Return whether a run exists, after checking that config, checkpoints and records match."""
    recorded, wanted = read_config(path), files.flatten(files.plain(config))
    if recorded is not None:
        advice = "choose another --workdir, or use that config"
        check_same_config(files.flatten(recorded), wanted, path, path, advice)
    for where, identity in identities(path):
        if "config" in identity:
            check_same_config(
                files.flatten(identity["config"]), wanted, path, where, f"move it out of {path}"
            )
    return recorded is not None


def writer_of(path: pathlib.Path) -> str:
    """Return the version of cpc that wrote a run, for messages."""
    found = files.read_object(path / "environment.json", []) or {}
    revision, version = found.get("git_revision"), found.get("cpc")
    if revision:
        return f"revision {revision}"
    return f"cpc {version}" if version else "the version that wrote it"


def identify_run(path: pathlib.Path, config: Config) -> dict[str, Any]:
    """Return the config, data and versions of a run, to be stored with its checkpoints."""
    data = files.read_object(path / MEMBERS, [])
    return {"config": files.plain(config), "data": data, "version": describe_version()}


def identities(path: pathlib.Path) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yield the path and stored identity of each of a run's checkpoints and of its metrics."""
    for step, metadata in read_metadata(path / "checkpoints").items():
        yield path / "checkpoints" / str(step), metadata
    yield path / "metrics.jsonl", read_identity(path / "metrics.jsonl")


def check_separate(path: pathlib.Path, config: Config) -> None:
    """Check that a run directory is not data.path, whose files would be read as data."""
    data = config.get("data", {}).get("path")
    if data and pathlib.Path(data).expanduser().resolve() == path.resolve():
        raise UserError(f"--workdir {path} is also data.path: set --workdir to another directory")


def record_state(path: pathlib.Path, state: str, **more: Any) -> None:
    """Record that a run is running, stopped, finished, failed or audited, for `cpc status`.

    `more` may contain an error message, and the values of `PROGRESS`, which later states keep.
    """
    steps = {k: v for k, v in read_state(path).items() if k in PROGRESS}
    own = {"state": state, "pid": os.getpid(), "host": platform.node(), "updated": time.time()}
    with contextlib.suppress(OSError):
        files.write_json(path / STATE, {**own, **steps, "command": command_line(), **more})


def read_state(path: pathlib.Path) -> dict[str, Any]:
    """Return the recorded state of a run, or {} if none is recorded."""
    return files.read_object(path / STATE, []) or {}


def read_failure(path: pathlib.Path) -> str:
    """Return a failed run's error and the command to retry it, or "" if it did not fail."""
    found = read_state(path)
    if found.get("state") != "failed":
        return ""
    return f"failed: {found.get('error')}. To retry: {found.get('command')}"


def read_config(path: pathlib.Path) -> Any:
    """Return the config in config.json or in the newest checkpoint, or None if both lack it."""
    file, checkpoints = path / "config.json", path / "checkpoints"
    try:
        return files.read_json(file)
    except UserError as error:
        found = read_metadata(checkpoints).values()
        config = next((metadata["config"] for metadata in found if "config" in metadata), None)
        if config is not None:
            print(f"{file} is missing or damaged: using the config of the newest checkpoint")
            return config
        if file.exists():
            raise
        if checkpoints.exists() and any(checkpoints.iterdir()):
            raise UserError(
                f"{file} is missing, but there are checkpoints: restore the file or use a new "
                "--workdir"
            ) from error
        return None


def check_same_config(
    recorded: Mapping[str, Any],
    wanted: Mapping[str, Any],
    path: pathlib.Path,
    where: pathlib.Path,
    advice: str,
) -> None:
    """Check that two flat configs agree, except in keys that do not affect training.

    The error contains `where`, the file of the recorded config, and `advice`.
    """
    if recorded.get("kind") == wanted.get("kind"):
        check_keys(recorded, wanted, writer_of(path))
    differing = {
        key: difference
        for key, difference in differences(recorded, wanted)
        if not key.startswith(("probe.", "data.num_threads", "steps_per_launch", "logger"))
    }
    if set(differing) == {"num_steps"} and (schedule := wanted.get("optim.schedule")):
        num_steps = wanted["num_steps"]
        steps = [int(item.name) for item in where.glob("checkpoints/*") if item.name.isdecimal()]
        if schedule != "constant":
            raise UserError(
                f"num_steps {num_steps:,} changes the {schedule} schedule: use a new --workdir"
            )
        if max(steps, default=0) > num_steps:
            raise UserError(
                f"{where} is at step {max(steps):,}, beyond num_steps {num_steps:,}: set a larger "
                "num_steps"
            )
    elif differing:  # configs of two kinds differ in nearly all keys
        which = differing.get("kind") or "; ".join(differing.values())
        raise UserError(f"{where} contains a run of another config ({which}): {advice}")


class Fingerprint(NamedTuple):
    """Identity of a part of the data, such as its training files."""

    number: int
    """Number of files or examples."""
    sha256: bytes
    """Digest of their names, labels or lengths."""
    content: bytes = b""
    """Part of the content, if other data may have the same names, labels or lengths."""
    exact: bytes = b""
    """Decoded content, compared only within a launch, since other versions may decode differently.
    """


def check_same_data(path: pathlib.Path, parts: Mapping[str, Fingerprint]) -> None:
    """Check that a run continues with the same data, and record their identity.

    A different number of files would change the split, and training data could become test data.
    """
    own = {
        part: {
            name: sha256(value).hexdigest() if isinstance(value, bytes) else value
            for name, value in found._asdict().items()
        }
        for part, found in parts.items()
    }
    wait_for_all("data", files.flatten({"data": own}))
    for described in own.values():
        described.pop("exact")
    copies = [(where, identity.get("data")) for where, identity in identities(path)]
    recorded = [(path, files.read_object(path / MEMBERS, [])), *copies]
    for where, found in recorded if has_begun(path) else ():
        if found and found != own:
            before, now = (
                ", ".join(f"{parts[part]['number']:,} to {part}" for part in own)
                for parts in (found, own)
            )
            change = f"was {before}; is {now}" if before != now else f"other files, {now}"
            raise UserError(
                f"the data changed since {where} started ({change}), so test data may have been "
                "trained on: restore the data or use a new --workdir"
            )
    if is_first():
        files.write_sealed(path / MEMBERS, own, is_durable=True)


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the keys in which two flat configs differ, each with a description."""
    a, b = recorded, wanted
    return [
        (key, f"{key} was {a.get(key, 'absent')!r} and is {b.get(key, 'absent')!r}")
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]


def describe_environment(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Return the versions, devices and command, on which measured figures depend."""
    packages = ("jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    return {
        **describe_version(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "devices": [device.device_kind for device in mesh.devices.flat],
        "processes": jax.process_count(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "host": platform.node(),
        "pid": os.getpid(),
        "command": command_line(),
    }


def write_skipped(workdir: pathlib.Path, skipped: Iterable[tuple[str, str]]) -> None:
    """Write the skipped data files and the reasons to skipped.txt."""
    if is_first():
        # Some reasons repeat the path for the console.
        lines = [f"{path}: {reason.removeprefix(f'{path}: ').removeprefix(f'{path} ')}\n"
                 for path, reason in skipped]  # fmt: skip
        files.write_text(workdir / "skipped.txt", "".join(lines), errors="replace")


def write_latest(path: pathlib.Path, step: int, **arrays: Any) -> None:
    """Write a figure's arrays and their step, unless the file contains a later step."""
    try:
        recorded = int(files.read_arrays(path)["step"])
    except (UserError, KeyError):  # missing, or without a step
        recorded = step
    if recorded <= step:
        files.write_arrays(path, step=np.asarray(step), **arrays)
