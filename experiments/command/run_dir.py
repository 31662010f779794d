"""The directory of a run: its config, its environment, and what was left out of its data."""

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

#: The state of a run, which the run itself records.
STATE = "state.json"
#: What a start, or a sweep of it, writes into a run directory before the data are read.
BEFORE_DATA = ("config.json", "environment.json", "log.txt", STATE, lock.LOCK)

#: Which data train a run, and which test it.
MEMBERS = "data.json"
#: What a start writes between reading the data and the first step, of its config alone.
BEFORE_STEPS = ("audit.json", "truth.json", "vocabulary.tsv", "augmentation", "probes")
#: What else a start writes then, which the next start replaces.
REPLACED = (MEMBERS, "skipped.txt", "checkpoints", "metrics.jsonl", "tensorboard")


@contextlib.contextmanager
def open_run(
    workdir: str | None, config: Config, mesh: jax.sharding.Mesh
) -> Iterator[pathlib.Path]:
    """Hold a run directory, which is made or has begun a run of the same config."""
    if not workdir:
        raise UserError("--workdir is required, e.g. --workdir runs/first")
    path = pathlib.Path(workdir).expanduser()
    check_name(path.absolute())  # which checkpoints need
    check_apart(path, config)
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
        except Stopped:  # a signal asked for it, and the same command goes on
            raise
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            end = {"state": "failed", "error": words}
            raise
        finally:
            if is_first() and read_state(path).get("state") == "running":
                record_state(path, **end)


def has_begun(path: pathlib.Path) -> bool:
    """Return whether a directory contains steps of a run, or anything that no start writes."""
    names = {item.name for item in path.iterdir()}
    probed = {item.name for item in path.glob("probes/*")} - {"augmented.npz"}
    return bool(
        names - {*BEFORE_DATA, *BEFORE_STEPS, *REPLACED}
        or probed
        or any(item.name.isdecimal() for item in path.glob("checkpoints/*"))
        or any(record["step"] > 0 for record in read_records(path, []))
    )


def remove_leftovers(path: pathlib.Path) -> None:
    """Remove what a start without steps has written, which may be of another config or data."""
    if (path / "config.json").exists():  # else the files are of something else
        for name in BEFORE_STEPS:
            for file in (path / name, *path.glob(f"{name}/*")):
                if file.is_file():
                    file.unlink()


def check_same_run(path: pathlib.Path, config: Config) -> bool:
    """Return whether there is a run; check that all of it, copied files too, is of this config."""
    recorded, wanted = read_config(path), files.flatten(files.plain(config))
    if recorded is not None:
        advice = "choose another --workdir, or give that config"
        check_same_config(files.flatten(recorded), wanted, path, path, advice)
    for where, identity in identities(path):
        if "config" in identity:
            check_same_config(
                files.flatten(identity["config"]), wanted, path, where, f"move it out of {path}"
            )
    return recorded is not None


def writer_of(path: pathlib.Path) -> str:
    """Return which version of cpc wrote a run, for messages."""
    found = files.read_object(path / "environment.json", []) or {}
    revision, version = found.get("git_revision"), found.get("cpc")
    if revision:
        return f"revision {revision}"
    return f"cpc {version}" if version else "the version that wrote it"


def identify_run(path: pathlib.Path, config: Config) -> dict[str, Any]:
    """Return what tells a run from others, for its checkpoints and records."""
    data = files.read_object(path / MEMBERS, [])
    return {"config": files.plain(config), "data": data, "version": describe_version()}


def identities(path: pathlib.Path) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Yield each checkpoint and the records of a run directory with the identity they carry."""
    for step, metadata in read_metadata(path / "checkpoints").items():
        yield path / "checkpoints" / str(step), metadata
    yield path / "metrics.jsonl", read_identity(path / "metrics.jsonl")


def check_apart(path: pathlib.Path, config: Config) -> None:
    """Check that a run directory is not the folder of the data, where it would be read as such."""
    data = config.get("data", {}).get("path")
    if data and pathlib.Path(data).expanduser().resolve() == path.resolve():
        raise UserError(
            f"the run directory {path} is data.path, and what a run writes would be read as data: "
            "choose another --workdir, such as a folder below it"
        )


def record_state(path: pathlib.Path, state: str, **more: Any) -> None:
    """Record the state of a run: running, stopped, finished, failed or audited; for `cpc status`.

    `more` are the step and num_steps, which are kept, or the error and the command to try again.
    """
    steps = {k: v for k, v in read_state(path).items() if k in ("step", "num_steps")}
    own = {"state": state, "pid": os.getpid(), "host": platform.node(), "updated": time.time()}
    with contextlib.suppress(OSError):
        files.write_json(path / STATE, {**own, **steps, "command": command_line(), **more})


def read_state(path: pathlib.Path) -> dict[str, Any]:
    """Return the recorded state of a run; {} if there is none."""
    return files.read_object(path / STATE, []) or {}


def read_failure(path: pathlib.Path) -> str:
    """Return why a run failed and how to try again; "" if it did not."""
    found = read_state(path)
    if found.get("state") != "failed":
        return ""
    return f"failed: {found.get('error')}. To try again: {found.get('command')}"


def read_config(path: pathlib.Path) -> Any:
    """Return the recorded config of a run, or that of its newest checkpoint; None without both."""
    file, checkpoints = path / "config.json", path / "checkpoints"
    try:
        return files.read_json(file)
    except UserError as error:
        found = read_metadata(checkpoints).values()
        config = next((metadata["config"] for metadata in found if "config" in metadata), None)
        if config is not None:
            print(f"{file} is missing or damaged: it is taken from the newest checkpoint")
            return config
        if file.exists():
            raise
        if checkpoints.exists() and any(checkpoints.iterdir()):
            raise UserError(
                f"cannot read {file}: it is gone, and there are checkpoints: put it back, or "
                "choose another --workdir"
            ) from error
        return None


def check_same_config(
    recorded: Mapping[str, Any],
    wanted: Mapping[str, Any],
    path: pathlib.Path,
    where: pathlib.Path,
    advice: str,
) -> None:
    """Check that two flat configs agree, except in keys that change no batch and no update."""
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
                f"{where} has a learning rate that falls to 0 at another num_steps (optim.schedule "
                f"is {schedule}): train {num_steps:,} steps in a new --workdir"
            )
        if max(steps, default=0) > num_steps:
            raise UserError(
                f"{where} has done {max(steps):,} steps already (num_steps is {num_steps:,}): give "
                "more, or choose another --workdir"
            )
    # Of another kind nearly every key is another, too.
    elif differing:
        which = differing.get("kind") or "; ".join(differing.values())
        raise UserError(f"{where} holds a run of another config ({which}): {advice}")


class Fingerprint(NamedTuple):
    """What tells a part of some data from another."""

    number: int
    """How many there are."""
    sha256: bytes
    """Which: names, labels or lengths."""
    content: bytes = b""
    """Some of the content, where the others may be the same of other data."""
    exact: bytes = b""
    """Content that only processes of one launch compare: other versions may decode it otherwise."""


def check_same_data(path: pathlib.Path, parts: Mapping[str, Fingerprint]) -> None:
    """Check that a run goes on with the data that it began with, and record them.

    One file more or less draws the split again, and training data would become test data.
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
                "trained on: restore the data, or use a new --workdir"
            )
    if is_first():
        files.write_sealed(path / MEMBERS, own, is_durable=True)


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the keys in which two flat configs differ, each with a clause that says how.

    >>> differences({"seed": 0, "optim.rate": 0.1}, {"seed": 1, "optim.rate": 0.1})
    [('seed', 'seed is 0 there and 1 here')]
    """
    a, b = recorded, wanted
    return [
        (key, f"{key} is {a.get(key, 'absent')!r} there and {b.get(key, 'absent')!r} here")
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]


def describe_environment(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Versions, devices, revision and command: what a figure was measured on."""
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
    """List what was left out of the data, and why, in the run directory."""
    if is_first():
        # Some reasons begin with the path, for the console.
        lines = [f"{path}: {reason.removeprefix(f'{path}: ').removeprefix(f'{path} ')}\n"
                 for path, reason in skipped]  # fmt: skip
        files.write_text(workdir / "skipped.txt", "".join(lines), errors="replace")


def write_latest(path: pathlib.Path, step: int, **arrays: Any) -> None:
    """Write what a figure shows of a step, unless the file has that of a later one."""
    try:
        kept = int(files.read_arrays(path)["step"])
    except (UserError, KeyError):  # there is none, or its step was not recorded
        kept = step
    if kept <= step:
        files.write_arrays(path, step=np.asarray(step), **arrays)
