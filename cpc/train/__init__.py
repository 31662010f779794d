"""State, step, optimizer, mesh, checkpoint, metrics, loop. Knows no modality, no loss, no model."""

from cpc.train.checkpoint import (
    Checkpoints,
    best_step,
    open_checkpoints,
    read_metadata,
    restore_params,
)
from cpc.train.distributed import (
    await_verdict,
    find_cluster,
    gather_rows,
    is_first,
    join_processes,
    leave_failing,
    leave_processes,
    run_on_first,
    wait_for_all,
)
from cpc.train.loop import Cadence, FitResult, Sinks, fit, means_per_step
from cpc.train.mesh import (
    BATCH_AXIS,
    batch_sharding,
    check_batch_size,
    choose_devices,
    make_mesh,
    put_batch,
    replicate,
    replicated,
)
from cpc.train.metrics import (
    JsonlWriter,
    ProgressWriter,
    ServiceWriter,
    TensorBoardWriter,
    Writer,
    describe_values,
    read_identity,
)
from cpc.train.optimizer import make_optimizer, scale_by_layer, schedule_free_average
from cpc.train.rows import init_row_state, make_row_step
from cpc.train.signals import Stopped, raise_if_stopped, stop_on_signals
from cpc.train.step import (
    TrainState,
    enable_compilation_cache,
    init_state,
    jit_step,
    make_train_step,
    scan_steps,
)

__all__ = [
    "BATCH_AXIS", "Cadence", "Checkpoints", "FitResult", "JsonlWriter", "ProgressWriter",
    "ServiceWriter", "Sinks", "Stopped", "TensorBoardWriter", "TrainState", "Writer",
    "await_verdict", "batch_sharding", "best_step", "check_batch_size", "choose_devices",
    "describe_values", "enable_compilation_cache", "find_cluster", "fit", "gather_rows",
    "init_row_state", "init_state", "is_first", "jit_step", "join_processes", "leave_failing",
    "leave_processes", "make_mesh", "make_optimizer", "make_row_step", "make_train_step",
    "means_per_step", "open_checkpoints", "put_batch", "raise_if_stopped", "read_identity",
    "read_metadata", "replicate", "replicated", "restore_params", "run_on_first",
    "scale_by_layer", "scan_steps", "schedule_free_average", "stop_on_signals", "wait_for_all",
]  # fmt: skip
