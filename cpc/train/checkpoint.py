"""Checkpoints: saved in the background, checksummed, the newest two and the best kept.

The only file that imports orbax. Orbax commits a save by renaming its directory, so one that was
cut short is never listed; but it restores flipped bits without a word, hence the checksums.
"""

import contextlib
import functools
import logging
import os
import pathlib
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from cpc.files import advise, read_sealed, read_text, seal, unseal, write_sealed
from cpc.train.distributed import await_verdict
from cpc.train.step import named_leaves
from cpc.types import PyTree, UserError

#: The metric of a step, in its folder, if it was evaluated only after the state was saved.
LATE_METRIC = "late-metric.json"
#: In the folder of checkpoints, while the evaluation due at one of them has not been made.
OWED = "owed-evaluation"
#: Metric by step of the checkpoints that have one.
Metrics: TypeAlias = dict[int, float]
#: By path: {"shape": list, "dtype": str, "crc32": int | None}.
Leaves: TypeAlias = dict[str, dict[str, Any]]


class NewestAndBest(ocp.checkpoint_managers.preservation_policy.PreservationPolicy):
    """Keep the newest two checkpoints and the one with the lowest metric, as orbax asks it."""

    def __init__(self, metrics: Metrics):
        self.metrics = metrics

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return for each checkpoint, the oldest first, whether it stays."""
        kept = _kept([one.step for one in checkpoints], self.metrics)
        return [one.step in kept for one in checkpoints]


class Checkpoints:
    """The checkpoints of one run. Made by `open_checkpoints`."""

    def __init__(
        self,
        directory: pathlib.Path,
        manager: ocp.CheckpointManager,
        metrics: Metrics,
        log: Callable[[str], None],
    ):
        self.directory = directory
        self._manager = manager
        self._metrics = metrics
        self._log = log
        self._last_saved: int | None = None

    @property
    def latest_step(self) -> int | None:
        """The newest committed step, or None."""
        return self._manager.latest_step()

    @property
    def owed_evaluation(self) -> int | None:
        """The step whose evaluation a signal cut short: whoever resumes there is to make it."""
        with contextlib.suppress(OSError, ValueError):
            return int(read_text(self.directory / OWED))
        return None

    @owed_evaluation.setter
    def owed_evaluation(self, step: int | None) -> None:
        if step is not None:
            (self.directory / OWED).write_text(str(step))
        elif self.owed_evaluation is not None:
            (self.directory / OWED).unlink()

    def save(
        self, step: int, state: PyTree, metadata: dict[str, Any], metric: float | None = None
    ) -> None:
        """Save in the background; a step that is not newer than the latest is left alone.

        The state has been copied when this returns, so the next step may donate it. `metric` (lower
        is better) is the claim to be kept as the best; without one, only the newest are kept. The
        latest step, saved without one, gets it later: that of an evaluation that was owed.

        Raises:
            UserError: this or the previous save cannot be written, as on a full disk.
        """
        if self.latest_step is not None and step <= self.latest_step:
            if step == self.latest_step and metric is not None and np.isfinite(metric):
                self._add_metric(step, float(metric))
            return
        arrays = _without_keys(state)
        if metric is not None and np.isfinite(metric):
            self._metrics[step] = float(metric)
        leaves = {  # None as crc32: spread over processes
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "crc32": _crc32(leaf)}
            for name, leaf in named_leaves(arrays)
        }
        meta = {"leaves": leaves, "metadata": metadata}
        meta = seal({**meta, "metric": self._metrics.get(step)})
        self.wait()  # an error of the save before is told as that one's
        self._last_saved = step
        with self._writing():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(meta)
                ),
            )

    def _add_metric(self, step: int, metric: float) -> None:
        """Record the metric of a checkpoint that has none, and delete what is no longer kept."""
        if step in self._metrics:
            return
        self.wait()
        self._metrics[step], self._last_saved = metric, step
        with self._writing():
            if jax.process_index() == 0:
                late = self.directory / str(step) / LATE_METRIC
                write_sealed(late, {"metric": metric}, is_durable=True)
            steps = sorted(self._manager.all_steps())
            for other in set(steps) - _kept(steps, self._metrics):
                self._manager.delete(other)

    def restore(self, target: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        """Read the newest undamaged checkpoint into the structure and shardings of `target`.

        A damaged checkpoint is reported, set aside under another name, and the one before it used.

        Returns:
            (state, metadata), or None if nothing was ever saved.

        Raises:
            UserError: all are damaged, or the target is of another shape (the first path that
                differs is named).
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        damaged = []
        for step in steps:
            restored = self._read(step, target)
            if restored is not None:
                self._set_aside(damaged)
                return restored
            damaged.append(step)
        if steps:
            raise UserError(_all_damaged(self.directory, steps))
        return None

    def is_preempted(self, step: int) -> bool:
        """Return whether the processes agreed to stop at this step, after a SIGTERM to one."""
        return jax.process_count() > 1 and self._manager.reached_preemption(step)

    def wait(self) -> None:
        """Wait until the last save is on disk; UserError if it could not be written."""
        with self._writing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Wait, and stop the background threads."""
        with self._writing():
            self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # An error that is already on its way says more than one from closing.
        with contextlib.suppress(UserError) if kind else contextlib.nullcontext():
            self.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # orbax and tensorstore raise many kinds for one full disk
            await_verdict()  # another process that ended is no full disk
            kept = sorted(self._manager.all_steps(read=True))
            raise UserError(
                f"The checkpoint of step {self._last_saved} could not be written to "
                f"{self.directory} ({_first_line(error)}); {advise(error)} and run the same "
                f"command again: it resumes from step {kept[-1] if kept else 0}."
            ) from error

    def _read(self, step: int, target: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, _without_keys(target))
        path = self.directory / str(step)
        try:
            meta = _read_meta(path)
            _check_same_shapes(shapes, meta["leaves"], path)
            with ocp.StandardCheckpointer() as reader:
                arrays = reader.restore(path / "state", shapes)
            _check_sums(arrays, meta["leaves"])
        except UserError:
            raise
        except Exception as error:
            self._log(
                f"The checkpoint {path} is damaged ({_first_line(error)}); trying the one before."
            )
            return None
        return _with_keys(arrays, target), meta["metadata"]

    def _set_aside(self, steps: list[int]) -> None:
        # Otherwise the run could not save again until it has passed the damaged step.
        if not steps:
            return
        for step in steps if jax.process_index() == 0 else []:
            path = self.directory / str(step)
            path.rename(path.with_name(f"damaged-{step}-{os.getpid()}"))
        for step in steps:
            self._metrics.pop(step, None)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("damaged checkpoints are set aside")
        self._manager.reload()


def open_checkpoints(
    directory: str | os.PathLike[str], log: Callable[[str], None] = print
) -> Checkpoints:
    """Open or make a directory of checkpoints; `log` receives one sentence per damaged one.

    Kept are the newest two and the one with the lowest metric. Orbax's own messages, many and long,
    are silenced for the whole process.
    """
    _silence_orbax()
    path = pathlib.Path(directory).absolute()  # orbax fails late on a relative one
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The checkpoint directory {path} cannot be made ({error.strerror}); choose another."
        ) from error
    metrics = _read_metrics(path)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=NewestAndBest(metrics), cleanup_tmp_directories=True
    )
    return Checkpoints(path, ocp.CheckpointManager(path, options=options), metrics, log)


def restore_params(
    directory: str | os.PathLike[str],
    step: int | Literal["best"] | None = None,
    log: Callable[[str], None] = print,
) -> tuple[dict[str, PyTree], dict[str, Any], int]:
    """Read the parameters of a checkpoint without the optimizer, as numpy arrays, for probes.

    Args:
        directory: the checkpoints of a run.
        step: of which checkpoint; "best" for the one with the lowest metric (see `best_step`); None
            for the newest undamaged one.
        log: receives one sentence for each damaged checkpoint that was passed over.

    Returns:
        ({"params": ..., "extra": ..., "ema": ...}, metadata, step), trees of dicts.
    """
    _silence_orbax()
    path = pathlib.Path(directory).absolute()
    if step == "best":
        step = best_step(path)
    steps = _steps(path)
    if not steps or step not in (None, *steps):
        wanted = "No checkpoint" if step is None else f"No checkpoint of step {step}"
        fix = f"choose a step of {steps}" if steps else "train the run first"
        raise UserError(f"{wanted} is in {path}: {fix}")
    for candidate in reversed(steps) if step is None else [step]:
        try:
            return *_read_params(path / str(candidate)), candidate
        except Exception as error:
            damage = f"The checkpoint {path / str(candidate)} is damaged ({_first_line(error)})"
            if step is not None:
                raise UserError(f"{damage}; choose another of the steps {steps}.") from error
            log(f"{damage}; trying the one before.")
    raise UserError(_all_damaged(path, steps))


def read_metadata(directory: str | os.PathLike[str]) -> dict[int, dict[str, Any]]:
    """Return what was saved with each state whose metadata is sound, by step, newest first."""
    metas = _read_metas(pathlib.Path(directory).absolute())
    return {step: meta["metadata"] for step, meta in metas.items()}


def best_step(directory: str | os.PathLike[str]) -> int:
    """Return the step whose checkpoint has the lowest metric: the one that is kept as the best.

    Raises:
        UserError: no checkpoint was saved at a step that was evaluated.
    """
    path = pathlib.Path(directory).absolute()
    best = _lowest(_read_metrics(path))
    if best is None:
        raise UserError(
            f"No checkpoint in {path} is the best, because none was evaluated; it has the steps "
            f"{_steps(path) or 'none'}."
        )
    return best


def _kept(steps: Sequence[int], metrics: Metrics) -> set[int | None]:
    """Return the newest two of some steps, the oldest first, and the one with the lowest metric."""
    return {*steps[-2:], _lowest({step: m for step, m in metrics.items() if step in steps})}


def _lowest(metrics: Metrics) -> int | None:
    """Return the step with the lowest metric, the newest of equal ones; None if none has one."""
    return min(metrics, key=lambda step: (metrics[step], -step), default=None)


def _read_metrics(path: pathlib.Path) -> Metrics:
    """Return the metric of each checkpoint that has one and is sound."""
    metrics: Metrics = {}
    for step, meta in _read_metas(path).items():
        metric = meta.get("metric")
        if metric is None:
            with contextlib.suppress(UserError):  # there is none, or it is damaged
                metric = read_sealed(path / str(step) / LATE_METRIC)["metric"]
        if metric is not None:
            metrics[step] = metric
    return metrics


def _read_metas(path: pathlib.Path) -> dict[int, dict[str, Any]]:
    """Return the sound metadata of checkpoints by step, newest first."""
    _silence_orbax()
    found = {}
    for step in reversed(_steps(path)):
        with contextlib.suppress(Exception):  # of a damaged checkpoint, which restoring reports
            found[step] = _read_meta(path / str(step))
    return found


def _steps(path: pathlib.Path) -> list[int]:
    return sorted(int(item.name) for item in path.glob("*") if item.name.isdecimal())


def _read_params(path: pathlib.Path) -> tuple[dict[str, PyTree], dict[str, Any]]:
    meta = _read_meta(path)
    wanted = _nest(meta["leaves"], ("params", "extra", "ema"))
    how = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    with ocp.PyTreeCheckpointer() as reader:
        args = ocp.args.PyTreeRestore(item=wanted, restore_args=how, partial_restore=True)
        arrays = reader.restore(path / "state", args=args)
    _check_sums(arrays, meta["leaves"])
    return {"params": {}, "extra": {}, "ema": None, **arrays}, meta["metadata"]


def _all_damaged(path: pathlib.Path, steps: list[int]) -> str:
    return (
        f"All checkpoints in {path} are damaged (steps {sorted(steps)}); "
        "restore them from a copy, or choose another work directory to start over."
    )


def _read_meta(path: pathlib.Path) -> dict[str, Any]:
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
        return unseal(reader.restore(path / "meta"))


@functools.cache
def _silence_orbax() -> None:
    """Silence orbax's messages, and the tracebacks that its threads print after an error.

    When one leaf fails, orbax closes its event loop, and what reads or writes the others finds so.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    shown = sys.unraisablehook

    def show_others(late: Any) -> None:
        if str(late.exc_value) != "Event loop is closed":
            shown(late)

    sys.unraisablehook = show_others


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_keys(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def _with_keys(arrays: PyTree, target: PyTree) -> PyTree:
    def wrap(leaf: Any, like: Any) -> Any:
        if not _is_key(like):
            return leaf
        return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(like))

    return jax.tree.map(wrap, arrays, target)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def _check_sums(arrays: PyTree, leaves: Leaves) -> None:
    """Raise a ValueError that names the first leaf that is not what was saved."""
    for name, leaf in named_leaves(arrays):
        if leaves[name]["crc32"] not in (None, _crc32(leaf)):
            raise ValueError(f"the checksum of {name} is wrong")


def _check_same_shapes(shapes: PyTree, leaves: Leaves, path: pathlib.Path) -> None:
    """Raise a UserError that names the first path at which checkpoint and target differ."""
    wanted = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in named_leaves(shapes)}
    found = {name: [leaf["shape"], leaf["dtype"]] for name, leaf in leaves.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"The checkpoint {path} is of another model: {name} is {found.get(name, 'absent')} "
                f"there and {wanted.get(name, 'absent')} here; use the config that wrote it, or "
                "another work directory."
            )


def _nest(leaves: Leaves, roots: tuple[str, ...]) -> dict[str, Any]:
    """Rebuild the trees under `roots` from paths: of dicts, and of lists where keys are numbers."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        if parents and parents[0] in roots:
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = jax.ShapeDtypeStruct(tuple(leaf["shape"]), jax.numpy.dtype(leaf["dtype"]))
    return {root: _number(branch) for root, branch in tree.items()}


def _number(tree: Any) -> Any:
    """Dicts with keys 0, 1, ... as lists."""
    if not isinstance(tree, dict):
        return tree
    branches = {name: _number(branch) for name, branch in tree.items()}
    if branches and sorted(branches) == sorted(map(str, range(len(branches)))):
        return [branches[str(i)] for i in range(len(branches))]
    return branches


def _crc32(leaf: Any) -> int | None:
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return None
    return zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data)
