"""Checkpoints that are saved asynchronously and verified with checksums.

The newest two checkpoints and the one with the lowest metric are kept. Only this module imports
orbax. Orbax commits a save by renaming its directory, so interrupted saves are never listed. It
does not detect flipped bits, so this module adds checksums.
"""

import contextlib
import dataclasses
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

#: File in a checkpoint's directory with a metric that was measured after the checkpoint was saved.
LATE_METRIC = "late-metric.json"
#: File next to the checkpoints with the step whose evaluation was interrupted.
PENDING_EVAL = "owed-evaluation"
#: Metrics of evaluated checkpoints by step. Lower is better.
Metrics: TypeAlias = dict[int, float]
#: Descriptions of leaves by path: {"shape": list, "dtype": str, "crc32": int | None}.
Leaves: TypeAlias = dict[str, dict[str, Any]]


@dataclasses.dataclass
class NewestAndBest(ocp.checkpoint_managers.preservation_policy.PreservationPolicy):
    """An orbax policy that keeps the newest two checkpoints and the one with the lowest metric."""

    metrics: Metrics

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return whether to keep each checkpoint, given the checkpoints from old to new."""
        preserved = _select_preserved([one.step for one in checkpoints], self.metrics)
        return [one.step in preserved for one in checkpoints]


@dataclasses.dataclass
class Checkpoints:
    """The checkpoints of one run, as returned by `open_checkpoints`."""

    directory: pathlib.Path
    _manager: ocp.CheckpointManager
    _metrics: Metrics
    _log: Callable[[str], None]
    _last_saved: int | None = None

    @property
    def latest_step(self) -> int | None:
        """The newest committed step, or None if nothing is saved."""
        return self._manager.latest_step()

    @property
    def pending_evaluation(self) -> int | None:
        """Step whose evaluation a signal interrupted, or None. A resumed run repeats it."""
        with contextlib.suppress(OSError, ValueError):
            return int(read_text(self.directory / PENDING_EVAL))
        return None

    @pending_evaluation.setter
    def pending_evaluation(self, step: int | None) -> None:
        if step is not None:
            (self.directory / PENDING_EVAL).write_text(str(step))
        else:
            (self.directory / PENDING_EVAL).unlink(missing_ok=True)

    def save(
        self, step: int, state: PyTree, metadata: dict[str, Any], metric: float | None = None
    ) -> None:
        """Save a state in the background.

        When this method returns, the state has been copied and may be donated. The checkpoint with
        the lowest `metric` is kept as the best. If the step is not later than the last saved one,
        nothing is saved. If it equals that step and the existing checkpoint has no metric, `metric`
        is added to the checkpoint.

        Raises:
            UserError: this or the previous save failed, for example because the disk is full.
        """
        metric = float(metric) if metric is not None and np.isfinite(metric) else None
        if self.latest_step is not None and step <= self.latest_step:
            if step == self.latest_step and metric is not None and step not in self._metrics:
                self._add_metric(step, metric)
            return
        arrays = _without_keys(state)
        if metric is not None:
            self._metrics[step] = metric
        leaves = {  # crc32 is None for arrays sharded over processes
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "crc32": _crc32(leaf)}
            for name, leaf in named_leaves(arrays)
        }
        meta = seal({"leaves": leaves, "metadata": metadata, "metric": metric})
        self.wait()  # so that a failure of the previous save is reported with the right step
        self._last_saved = step
        with self._writing():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(meta)
                ),
            )

    def _add_metric(self, step: int, metric: float) -> None:
        """Add a metric to a checkpoint, and delete checkpoints that are no longer kept."""
        self.wait()
        self._metrics[step], self._last_saved = metric, step
        with self._writing():
            if jax.process_index() == 0:
                late = self.directory / str(step) / LATE_METRIC
                write_sealed(late, {"metric": metric}, is_durable=True)
            steps = sorted(self._manager.all_steps())
            for other in set(steps) - _select_preserved(steps, self._metrics):
                self._manager.delete(other)

    def restore(self, target: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        """Restore the newest undamaged checkpoint, with the structure and shardings of `target`.

        Damaged checkpoints are reported and renamed, and the checkpoint before them is restored.

        Returns:
            (state, metadata), or None if there are no checkpoints.

        Raises:
            UserError: all checkpoints are damaged, or `target` and the checkpoint differ in
                structure. The error names the first leaf that differs.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for num_damaged, step in enumerate(steps):
            if (restored := self._read(step, target)) is not None:
                self._set_aside(steps[:num_damaged])
                return restored
        if steps:
            raise UserError(_all_damaged(self.directory, steps))
        return None

    def is_preempted(self, step: int) -> bool:
        """Return whether all processes stop at this step because one received SIGTERM."""
        return jax.process_count() > 1 and self._manager.reached_preemption(step)

    def wait(self) -> None:
        """Wait until the last save is on disk. Raises UserError if the save failed."""
        with self._writing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Wait for the last save and stop the background threads."""
        with self._writing():
            self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # If the block has raised, an error from closing must not replace that error.
        with contextlib.suppress(UserError) if kind else contextlib.nullcontext():
            self.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # orbax and tensorstore raise many types for a full disk
            await_verdict()  # the cause may instead be that another process ended
            saved = sorted(self._manager.all_steps(read=True))
            raise UserError(
                f"the checkpoint of step {self._last_saved} could not be written to "
                f"{self.directory} ({_first_line(error)}): {advise(error)} and rerun the command, "
                f"which resumes from step {saved[-1] if saved else 0}"
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
            self._log(_describe_damage(path, error, "trying the previous one"))
            return None
        return _with_keys(arrays, target), meta["metadata"]

    def _set_aside(self, steps: list[int]) -> None:
        # Steps that are not above the newest listed step cannot be saved.
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
    """Open a checkpoint directory, and create it if it does not exist.

    The newest two checkpoints and the one with the lowest metric are kept. `log` receives one
    sentence per damaged checkpoint. Orbax log messages are silenced for the whole process.
    """
    _silence_orbax()
    path = pathlib.Path(directory).absolute()  # orbax rejects relative paths only when saving
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the checkpoint directory {path} cannot be created ({error.strerror}): choose another "
            "directory"
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
    """Restore a checkpoint's parameters as NumPy arrays, without the optimizer state.

    Args:
        directory: a run's checkpoint directory.
        step: a step, "best" for the checkpoint with the lowest metric, or None for the newest
            undamaged checkpoint.
        log: a function that receives one sentence per damaged checkpoint that is skipped.

    Returns:
        ({"params": ..., "extra": ..., "ema": ...}, metadata, step). The trees are nested dicts.
    """
    _silence_orbax()
    path = pathlib.Path(directory).absolute()
    if step == "best":
        step = best_step(path)
    steps = _steps(path)
    if not steps or step not in (None, *steps):
        of_step = "" if step is None else f" of step {step}"
        fix = f"choose one of the steps {steps}" if steps else "train the run first"
        raise UserError(f"{path} does not contain a checkpoint{of_step}: {fix}")
    for candidate in reversed(steps) if step is None else [step]:
        try:
            return *_read_params(path / str(candidate)), candidate
        except Exception as error:
            fix = "trying the previous one" if step is None else f"choose another step of {steps}"
            damage = _describe_damage(path / str(candidate), error, fix)
            if step is not None:
                raise UserError(damage) from error
            log(damage)
    raise UserError(_all_damaged(path, steps))


def read_metadata(directory: str | os.PathLike[str]) -> dict[int, dict[str, Any]]:
    """Return each undamaged checkpoint's metadata by step, newest first."""
    metas = _read_metas(pathlib.Path(directory).absolute())
    return {step: meta["metadata"] for step, meta in metas.items()}


def best_step(directory: str | os.PathLike[str]) -> int:
    """Return the step with the lowest metric. Raises UserError if no checkpoint has a metric."""
    path = pathlib.Path(directory).absolute()
    best = _lowest(_read_metrics(path))
    if best is None:
        raise UserError(
            f"{path} has no evaluated checkpoint: choose a step of {_steps(path) or 'another run'}"
        )
    return best


def _select_preserved(steps: Sequence[int], metrics: Metrics) -> set[int | None]:
    return {*steps[-2:], _lowest({step: m for step, m in metrics.items() if step in steps})}


def _lowest(metrics: Metrics) -> int | None:
    """Return the step with the lowest metric. The newest step wins a tie."""
    return min(metrics, key=lambda step: (metrics[step], -step), default=None)


def _read_metrics(path: pathlib.Path) -> Metrics:
    metrics: Metrics = {}
    for step, meta in _read_metas(path).items():
        metric = meta.get("metric")
        if metric is None:
            with contextlib.suppress(UserError):  # missing or damaged
                metric = read_sealed(path / str(step) / LATE_METRIC)["metric"]
        if metric is not None:
            metrics[step] = metric
    return metrics


def _read_metas(path: pathlib.Path) -> dict[int, dict[str, Any]]:
    _silence_orbax()
    found = {}
    for step in reversed(_steps(path)):
        with contextlib.suppress(Exception):  # damage is reported when restoring
            found[step] = _read_meta(path / str(step))
    return found


def _steps(path: pathlib.Path) -> list[int]:
    return sorted(int(item.name) for item in path.glob("*") if item.name.isdecimal())


def _read_params(path: pathlib.Path) -> tuple[dict[str, PyTree], dict[str, Any]]:
    meta = _read_meta(path)
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.metadata(path / "state").item_metadata.tree  # of dicts and lists
        saved = {root: tree[root] for root in ("params", "extra", "ema") if root in tree}
        wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), saved)
        types = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        args = ocp.args.PyTreeRestore(item=wanted, restore_args=types, partial_restore=True)
        arrays = reader.restore(path / "state", args=args)
    roots = tuple(f"{root}/" for root in saved)
    leaves = {name: leaf for name, leaf in meta["leaves"].items() if name.startswith(roots)}
    _check_sums(arrays, leaves)
    return {"params": {}, "extra": {}, "ema": None, **arrays}, meta["metadata"]


def _describe_damage(path: pathlib.Path, error: Exception, fix: str) -> str:
    return f"the checkpoint {path} is damaged ({_first_line(error)}): {fix}"


def _all_damaged(path: pathlib.Path, steps: list[int]) -> str:
    return (
        f"all checkpoints in {path} are damaged (steps {sorted(steps)}): restore them from a copy, "
        "or start over in another work directory"
    )


def _read_meta(path: pathlib.Path) -> dict[str, Any]:
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
        return unseal(reader.restore(path / "meta"))


@functools.cache
def _silence_orbax() -> None:
    # When one leaf fails, orbax closes its event loop, so the threads of other leaves also fail.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    previous_hook = sys.unraisablehook

    def report_others(error: Any) -> None:
        if str(error.exc_value) != "Event loop is closed":
            previous_hook(error)

    sys.unraisablehook = report_others


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
    found = dict(named_leaves(arrays))
    for name, leaf in leaves.items():
        if leaf["crc32"] not in (None, _crc32(found[name])):
            raise ValueError(f"the checksum of {name} is wrong")


def _check_same_shapes(shapes: PyTree, leaves: Leaves, path: pathlib.Path) -> None:
    wanted = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in named_leaves(shapes)}
    found = {name: [leaf["shape"], leaf["dtype"]] for name, leaf in leaves.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{path} does not match the model ({name} is {found.get(name, 'absent')} there and "
                f"{wanted.get(name, 'absent')} here): use the config of the checkpoint, or another "
                "work directory"
            )


def _crc32(leaf: Any) -> int | None:
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return None
    return zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data)
