"""The state of a training run, and step functions with dense or row-wise parameter updates.

Row-wise updates support neither momentum nor weight decay, which change every row at every step.
"""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cpc.train.optimizer import schedule_free_average
from cpc.types import PyTree

#: Names of the sums that the step adds to the loss's metrics.
OWN_METRICS = ("steps", "loss", "gradient_norm", "nonfinite")


class TrainState(NamedTuple):
    """The training state. The next step depends only on this state and its batch."""

    step: Int[Array, ""]
    """Number of completed steps, int32. It is also the index of the next batch."""
    params: PyTree
    opt_state: PyTree
    extra: PyTree
    """Model variables that are not parameters, such as batch statistics. {} if there are none."""
    ema: PyTree
    """Running average of the parameters, or None if no average is kept."""
    rng: Array
    """The root key, which never changes: step n uses `fold_in(rng, n)`."""
    metrics: dict[str, PyTree]
    """Sums since the last log, float32. They are saved, so a resumed run logs the same sums."""
    failure: Int[Array, "2"]
    """(step, leaf) of the first non-finite gradient or loss, or (-1, -1) if all were finite."""


def init_state(
    params: PyTree,
    extra: PyTree,
    tx: optax.GradientTransformation,
    rng: Array,
    metrics_zeros: dict[str, PyTree],
    ema: bool = False,
) -> TrainState:
    """Return the training state before the first step.

    `metrics_zeros` has the structure and shapes of the loss's metrics. Every leaf is copied to a
    new buffer, so that the caller's arrays remain valid when the state is donated. Weak types are
    removed, so that the step is traced only once.

    >>> state = init_state({"w": jnp.ones(3)}, {}, optax.sgd(0.1), jax.random.key(0), {})
    >>> sorted(state.metrics), state.failure.tolist()
    (['gradient_norm', 'loss', 'nonfinite', 'steps'], [-1, -1])
    """
    if clash := sorted({*OWN_METRICS} & {*metrics_zeros}):
        raise ValueError(f"metrics {clash} are reserved by the step: rename them in the loss")
    sums = {**metrics_zeros, **dict.fromkeys(OWN_METRICS, jnp.zeros(()))}
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=_fresh(params),
        opt_state=_fresh(tx.init(params)),
        extra=_fresh(extra),
        ema=_fresh(params) if ema else None,
        rng=_fresh(rng),
        metrics=jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32), sums),
        failure=jnp.full((2,), -1, jnp.int32),
    )


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Return a (path, leaf) pair for each leaf of a tree, in the order of `jax.tree.leaves`.

    >>> named_leaves({"encoder": {"kernel": 1, "bias": 2}})
    [('encoder/bias', 2), ('encoder/kernel', 1)]
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


@jax.jit
def _fresh(tree: PyTree) -> PyTree:
    # Jitted for the whole tree, because leaf by leaf every shape would be compiled separately.

    def strong_copy(leaf: Array) -> Array:
        leaf = jnp.copy(leaf)
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return leaf if is_key else lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(strong_copy, tree)


#: loss_fn(params, extra, batch, rng) -> (loss, (extra, metrics)). Metrics are summed over steps.
LossFn = Callable[[PyTree, PyTree, Any, Array], tuple[Array, tuple[PyTree, dict[str, PyTree]]]]


def make_train_step(
    loss_fn: LossFn, tx: optax.GradientTransformation, *, ema_decay: float = 0.0
) -> Callable[[TrainState, Any], TrainState]:
    """Make a pure function `step(state, batch) -> state`, to be compiled by `jit_step`.

    A step's random key is `fold_in(state.rng, state.step)`. The loss's metrics, and the sums
    "steps", "loss", "gradient_norm" and "nonfinite", are added to `state.metrics`.

    From the first step with a non-finite loss or gradient on, no updates are applied. The state
    keeps the last good parameters, and `state.failure` contains the index of the failed step and
    that of its first non-finite leaf, so the host need not check every step. A gradient whose
    square overflows float32 counts as non-finite.

    If the state was made with `ema=True`, each step updates the running average: ema <- ema_decay *
    ema + (1 - ema_decay) * params. If the optimizer is schedule-free Adam, ema is its own average.
    """

    def step(state: TrainState, batch: Any) -> TrainState:
        rng = jax.random.fold_in(state.rng, state.step)
        (loss, (extra, metrics)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, state.extra, batch, rng
        )
        healthy, after = guard_nonfinite(state, gradients, loss, metrics)
        updates, opt_state = tx.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:
            kept = schedule_free_average(opt_state, params)
            if kept is None:
                kept = jax.tree.map(lambda e, p: ema_decay * e + (1 - ema_decay) * p, ema, params)
            ema = kept
        return after._replace(
            params=_select(healthy, params, state.params),
            opt_state=_select(healthy, opt_state, state.opt_state),
            extra=_select(healthy, extra, state.extra),
            ema=_select(healthy, ema, state.ema),
        )

    return step


def guard_nonfinite(
    state: TrainState, gradients: PyTree, loss: Float[Array, ""], metrics: dict[str, PyTree]
) -> tuple[Bool[Array, ""], TrainState]:
    """Return whether a step's updates apply, and the state with its new sums and `failure`."""
    clash = sorted(set(OWN_METRICS) & set(metrics))
    if clash:
        raise ValueError(f"metrics {clash} are reserved by the step: rename them in the loss")
    leaves = jax.tree.leaves(gradients)
    squares = jnp.stack([jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves])
    bad = ~jnp.isfinite(jnp.append(squares, loss.astype(jnp.float32)))
    going, nonfinite = state.failure[0] < 0, jnp.any(bad)
    healthy = going & ~nonfinite
    own = {"steps": jnp.ones(()), "loss": loss, "gradient_norm": jnp.sqrt(jnp.sum(squares))}
    sums = jax.tree.map(
        lambda a, b: a + jnp.where(healthy, jnp.asarray(b).astype(jnp.float32), 0.0),
        state.metrics,
        {**metrics, **own, "nonfinite": 0.0},
    )
    sums["nonfinite"] += nonfinite.astype(jnp.float32)
    first = jnp.stack([state.step, jnp.argmax(bad).astype(jnp.int32)])
    failure = jnp.where(going & nonfinite, first, state.failure)
    return healthy, state._replace(step=state.step + 1, metrics=sums, failure=failure)


def scan_steps(
    step: Callable[[TrainState, Any], TrainState], state: TrainState, batches: Any
) -> TrainState:
    """Apply one step per batch with `jax.lax.scan`. Batches are stacked along the first axis."""
    return jax.lax.scan(lambda state, batch: (step(state, batch), None), state, batches)[0]


def make_launch(
    step: Callable[[TrainState, Any], TrainState],
) -> Callable[[TrainState, Sequence[Any]], TrainState]:
    """Make `launch(state, batches) -> state`, which applies several steps in one program."""

    def launch(state: TrainState, batches: Sequence[Any]) -> TrainState:
        return scan_steps(step, state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches))

    return launch


def jit_step(
    step: Callable[[TrainState, Any], TrainState], state: TrainState
) -> Callable[[TrainState, Any], TrainState]:
    """Jit a step function. Its state is donated, and every leaf keeps its sharding in `state`."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(step, donate_argnums=0, out_shardings=shardings)


def enable_compilation_cache(path: str | os.PathLike[str]) -> None:
    """Cache all compiled programs under `path`. Call this before the first compilation."""
    jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(path).absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def describe_failure(failure: Any, params: PyTree) -> str | None:
    """Describe the step and leaf in `state.failure`, or return None if no step has failed.

    >>> describe_failure([6, 1], {"bias": 0.0, "kernel": 0.0})
    'step 7 (batch 6): the gradient of kernel'
    """
    step, leaf = np.asarray(failure).tolist()
    if step < 0:
        return None
    names = [f"the gradient of {name}" for name, _ in named_leaves(params)]
    return f"step {step + 1} (batch {step}): {[*names, 'the loss'][leaf]}"


def _select(healthy: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    # Keep the old dtype, so that the step is traced only once.
    return jax.tree.map(
        lambda n, o: jnp.where(healthy, jnp.asarray(n).astype(o.dtype), o), new, old
    )


#: Initial value of the sums of squared gradients in Adagrad.
FIRST_SUM = 0.1

#: Row ids that a step reads, by table name. None reads the whole table.
RowIds: TypeAlias = dict[str, Array | None]
#: choose(params, extra, batch, rng) -> (sample, ids): the random draws and the row ids to read.
Choose: TypeAlias = Callable[[PyTree, PyTree, Any, Array], tuple[Any, RowIds]]
#: loss_fn(parts, extra, batch, sample) -> (loss, (extra, metrics)), as in `make_train_step`.
#: `parts` is {"tables": the rows that were read, by table name, "dense": all other parameters}.
RowLoss: TypeAlias = Callable[[PyTree, PyTree, Any, Any], tuple[Array, tuple[PyTree, dict]]]


def make_row_step(
    choose: Choose,
    loss_fn: RowLoss,
    learning_rate: Callable[[Array], Array],
    rule: Literal["sgd", "adagrad"] = "sgd",
) -> Callable[[TrainState, Any], TrainState]:
    """Make `step(state, batch) -> state`, which updates only the table rows that a batch reads.

    The parameters are {"tables": {name: (v, ...)}, "dense": ...}, where v is the number of rows. If
    a row is read twice, its gradients are summed, so a step with "sgd" equals a dense step.
    "adagrad" (Duchi et al. 2011) sums the squared gradients of all reads, so it equals dense
    Adagrad if no row is read twice. `init_row_state` makes the initial state.

    As in `make_train_step`, a step's random key is `fold_in(state.rng, state.step)`, and no updates
    are applied from the first step with a non-finite loss or gradient on.
    """

    def update(rate, table, ids, gradient, squares):
        if rule == "sgd":
            return _add_rows(table, ids, -rate * gradient), squares
        squares = _add_rows(squares, ids, jnp.square(gradient))
        read = squares if ids is None else squares[ids]
        return _add_rows(table, ids, -rate * gradient * jax.lax.rsqrt(read + 1e-10)), squares

    def step(state: TrainState, batch: Any) -> TrainState:
        rng = jax.random.fold_in(state.rng, state.step)
        params = state.params
        sample, ids = choose(params, state.extra, batch, rng)
        tables = {
            name: table if ids[name] is None else table[ids[name]]
            for name, table in params["tables"].items()
        }
        (loss, (extra, metrics)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(
            {"tables": tables, "dense": params["dense"]}, state.extra, batch, sample
        )
        healthy, after = guard_nonfinite(state, gradients, loss, metrics)
        # Zero the row gradients of a failed step rather than select tables, which would copy them.
        gradients = jax.tree.map(lambda g: jnp.where(healthy, g, 0.0), gradients)
        rate = learning_rate(state.step)
        leaves, tree = jax.tree.flatten(params)
        rows = {name: ids[name] for name in params["tables"]}
        read = tree.flatten_up_to(
            {"tables": rows, "dense": jax.tree.map(lambda _: None, params["dense"])}
        )
        squares = jax.tree.leaves(state.opt_state) or [None] * len(leaves)
        columns = zip(leaves, read, jax.tree.leaves(gradients), squares, strict=True)
        moved = [update(rate, *column) for column in columns]
        new, squares = (tree.unflatten(column) for column in zip(*moved, strict=True))
        return after._replace(
            params=new,
            opt_state=state.opt_state if rule == "sgd" else squares,
            extra=_select(healthy, extra, state.extra),
        )

    return step


def init_row_state(
    params: PyTree,
    extra: PyTree,
    rule: Literal["sgd", "adagrad"],
    rng: Array,
    metrics_zeros: dict[str, PyTree],
) -> TrainState:
    """Return the training state before the first step of `make_row_step`.

    For "sgd", `opt_state` is empty. For "adagrad", it contains the sums of squared gradients, which
    start at `FIRST_SUM`.
    """
    state = init_state(params, extra, optax.identity(), rng, metrics_zeros)
    squares: PyTree = {"tables": {}, "dense": {}}
    if rule == "adagrad":
        squares = jax.tree.map(lambda leaf: jnp.full(leaf.shape, FIRST_SUM, jnp.float32), params)
    return state._replace(opt_state=squares)


def _add_rows(table, ids, update):
    return table + update if ids is None else table.at[ids].add(update)
