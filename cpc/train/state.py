"""What a training run carries from step to step: one pytree, saved and restored whole."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Int

from cpc.types import PyTree

#: Sums that the step adds to whatever metrics the loss returns.
OWN_METRICS = ("steps", "loss", "gradient_norm", "nonfinite")


class TrainState(NamedTuple):
    """Everything that the next step depends on, besides its batch."""

    step: Int[Array, ""]
    """Steps done, int32: also the index of the next batch."""
    params: PyTree
    opt_state: PyTree
    extra: PyTree
    """What the model carries besides its parameters, such as batch statistics; {} if nothing."""
    ema: PyTree
    """Running average of the parameters; None if not wanted."""
    rng: Array
    """The root key, never split: step n uses `fold_in(rng, n)`."""
    metrics: dict[str, PyTree]
    """Sums since the last log, float32. They live here so that a resumed run logs the same sums."""
    failure: Int[Array, "2"]
    """(step, leaf) of the first non-finite gradient or loss; (-1, -1) while all is well."""


def init_state(
    params: PyTree,
    extra: PyTree,
    tx: optax.GradientTransformation,
    rng: Array,
    metrics_zeros: dict[str, PyTree],
    ema: bool = False,
) -> TrainState:
    """Return the state before the first step; `metrics_zeros` is shaped like the loss's metrics.

    Every leaf is a fresh buffer, because the step is jitted with a donated state: the caller's own
    arrays survive. Weak types are removed, so that the step traces once.

    >>> state = init_state({"w": jnp.ones(3)}, {}, optax.sgd(0.1), jax.random.key(0), {})
    >>> sorted(state.metrics), state.failure.tolist()
    (['gradient_norm', 'loss', 'nonfinite', 'steps'], [-1, -1])
    """
    clash = sorted(set(OWN_METRICS) & set(metrics_zeros))
    if clash:
        raise ValueError(f"metrics named {clash} are the step's own; rename those of the loss")
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=_fresh(params),
        opt_state=_fresh(tx.init(params)),
        extra=_fresh(extra),
        ema=_fresh(params) if ema else None,
        rng=_fresh(rng),
        metrics=zeros_like_metrics({**metrics_zeros, **dict.fromkeys(OWN_METRICS, jnp.zeros(()))}),
        failure=jnp.full((2,), -1, jnp.int32),
    )


def zeros_like_metrics(metrics: PyTree) -> PyTree:
    """Return zero float32 sums of the same shapes, from arrays or from `jax.eval_shape`."""
    return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32), metrics)


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Return (path, leaf) of each leaf, in the order of `jax.tree.leaves`.

    >>> named_leaves({"encoder": {"kernel": 1, "bias": 2}})
    [('encoder/bias', 2), ('encoder/kernel', 1)]
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _fresh(tree: PyTree) -> PyTree:
    def strong_copy(leaf: Array) -> Array:
        leaf = jnp.copy(leaf)
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return leaf if is_key else lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(strong_copy, tree)
