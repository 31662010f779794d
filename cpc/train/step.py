"""One training step: gradient, optimizer, running sums, and a brake on non-finite numbers."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from cpc.train.optimizer import schedule_free_average
from cpc.train.state import OWN_METRICS, TrainState, named_leaves
from cpc.types import PyTree

#: loss_fn(params, extra, batch, rng) -> (loss, (extra, metrics)); the metrics are additive sums.
LossFn = Callable[[PyTree, PyTree, Any, Array], tuple[Array, tuple[PyTree, dict[str, PyTree]]]]


def make_train_step(
    loss_fn: LossFn, tx: optax.GradientTransformation, *, ema_decay: float = 0.0
) -> Callable[[TrainState, Any], TrainState]:
    """Make `step(state, batch) -> state`, a pure function to be jitted with the state donated.

    The step's key is `fold_in(state.rng, state.step)`. The metrics of the loss, and the sums
    "steps", "loss", "gradient_norm" and "nonfinite", are added to `state.metrics`.

    From the first non-finite loss or gradient on, no update is applied: the state keeps the last
    good parameters, and `state.failure` holds the index of that step and of its first non-finite
    leaf, so that nobody needs to look at the numbers of every step. A gradient whose square
    overflows float32 counts as non-finite. In a state made with `ema=True`, ema <- ema_decay * ema
    + (1 - ema_decay) * params, or what schedule-free Adam averages.
    """

    def step(state: TrainState, batch: Any) -> TrainState:
        rng = jax.random.fold_in(state.rng, state.step)
        (loss, (extra, metrics)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, state.extra, batch, rng
        )
        healthy, after = brake(state, gradients, loss, metrics)
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


def brake(
    state: TrainState, gradients: PyTree, loss: Float[Array, ""], metrics: dict[str, PyTree]
) -> tuple[Bool[Array, ""], TrainState]:
    """Return whether a step may update anything, and the state with its sums and `failure`."""
    clash = sorted(set(OWN_METRICS) & set(metrics))
    if clash:
        raise ValueError(f"metrics named {clash} are the step's own; rename those of the loss")
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
    """Return the state after a step for each entry of the leaves' first axis."""
    return jax.lax.scan(lambda state, batch: (step(state, batch), None), state, batches)[0]


def make_launch(
    step: Callable[[TrainState, Any], TrainState],
) -> Callable[[TrainState, Sequence[Any]], TrainState]:
    """Make `launch(state, batches) -> state`: one step for each batch, in one program."""

    def launch(state: TrainState, batches: Sequence[Any]) -> TrainState:
        return scan_steps(step, state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches))

    return launch


def jit_step(
    step: Callable[[TrainState, Any], TrainState], state: TrainState
) -> Callable[[TrainState, Any], TrainState]:
    """Jit a step for states like this one: donated, and every leaf kept where it lives."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(step, donate_argnums=0, out_shardings=shardings)


def enable_compilation_cache(path: str | os.PathLike[str]) -> None:
    """Keep every compiled program under `path`; call it before the first compilation."""
    jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(path).absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def describe_failure(failure: Any, params: PyTree) -> str | None:
    """Name the step and leaf that `state.failure` holds; None while all is well.

    >>> describe_failure([6, 1], {"bias": 0.0, "kernel": 0.0})
    'step 7 (batch 6): the gradient of kernel'
    """
    step, leaf = np.asarray(failure).tolist()
    if step < 0:
        return None
    names = [f"the gradient of {name}" for name, _ in named_leaves(params)]
    return f"step {step + 1} (batch {step}): {[*names, 'the loss'][leaf]}"


def _select(healthy: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """The new leaves if healthy, else the old ones, in the old dtype: the step traces once."""
    return jax.tree.map(
        lambda n, o: jnp.where(healthy, jnp.asarray(n).astype(o.dtype), o), new, old
    )
