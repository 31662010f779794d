"""A training step that touches only the rows of its tables that a batch reads.

Momentum and weight decay, which change every row at every step, have no place here.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from cpc.train.step import TrainState, brake, init_state
from cpc.types import PyTree

#: What the sums of squares of Adagrad begin at.
FIRST_SUM = 0.1

#: Ids of the rows that a step reads, by table; None for the whole table.
RowIds: TypeAlias = dict[str, Array | None]
#: choose(params, extra, batch, rng) -> (sample, ids): what was drawn, and the rows to be read.
Choose: TypeAlias = Callable[[PyTree, PyTree, Any, Array], tuple[Any, RowIds]]
#: loss_fn(parts, extra, batch, sample) -> (loss, (extra, metrics)), as of `make_train_step`, with
#: `parts` {"tables": the rows by table, "dense": all that is no table}.
RowLoss: TypeAlias = Callable[[PyTree, PyTree, Any, Any], tuple[Array, tuple[PyTree, dict]]]


def make_row_step(
    choose: Choose,
    loss_fn: RowLoss,
    learning_rate: Callable[[Array], Array],
    rule: Literal["sgd", "adagrad"] = "sgd",
) -> Callable[[TrainState, Any], TrainState]:
    """Make `step(state, batch) -> state` for parameters {"tables": {name: (v, ...)}, "dense": ...}.

    A row that is read twice is updated by the sum, as a dense gradient would be: with "sgd" the
    step equals a dense one. "adagrad" (Duchi et al. 2011) adds the square of each reading, and so
    equals dense Adagrad where no row is read twice; its state is that of `init_row_state`.

    As in `make_train_step`, the key is `fold_in(state.rng, state.step)`, and nothing is updated
    from the first number on that is not finite.
    """

    def update(rate, table, squares, ids, gradient):
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
        healthy, after = brake(state, gradients, loss, metrics)
        # Of the rows, not of the tables: these are never copied.
        gradients = jax.tree.map(lambda g: jnp.where(healthy, g, 0.0), gradients)
        rate = learning_rate(state.step)
        new, kept = {}, {}
        for name, table in params["tables"].items():
            old = state.opt_state["tables"].get(name)
            new[name], kept[name] = update(rate, table, old, ids[name], gradients["tables"][name])
        leaves, shape = jax.tree.flatten(params["dense"])
        old = jax.tree.leaves(state.opt_state["dense"]) or [None] * len(leaves)
        moved = [
            update(rate, leaf, square, None, gradient)
            for leaf, square, gradient in zip(
                leaves, old, jax.tree.leaves(gradients["dense"]), strict=True
            )
        ]
        dense, dense_squares = ([one[i] for one in moved] for i in (0, 1))
        return after._replace(
            params={"tables": new, "dense": jax.tree.unflatten(shape, dense)},
            opt_state=state.opt_state
            if rule == "sgd"
            else {"tables": kept, "dense": jax.tree.unflatten(shape, dense_squares)},
            extra=jax.tree.map(lambda n, o: jnp.where(healthy, n, o), extra, state.extra),
        )

    return step


def init_row_state(
    params: PyTree,
    extra: PyTree,
    rule: Literal["sgd", "adagrad"],
    rng: Array,
    metrics_zeros: dict[str, PyTree],
) -> TrainState:
    """Return the state before the first step by rows, as `init_state` does.

    `opt_state` holds the sums of squares, which begin at `FIRST_SUM`; nothing of "sgd".
    """
    state = init_state(params, extra, optax.identity(), rng, metrics_zeros)
    squares: PyTree = {"tables": {}, "dense": {}}
    if rule == "adagrad":
        squares = jax.tree.map(lambda leaf: jnp.full(leaf.shape, FIRST_SUM, jnp.float32), params)
    return state._replace(opt_state=squares)


def _add_rows(table, ids, update):
    return table + update if ids is None else table.at[ids].add(update)
