"""Frames in which a direction of time goes forward, and how an encoder is cut into modules."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from cpc.types import UserError

TIME_DIRECTIONS = ("forward", "backward")


def reverse_time(x: Any, number: Int[Array, " b"]) -> Any:
    """Return (b, t, ...) whose rows have their first `number` entries in reverse; its own inverse.

    What follows these, the padding of a short row, stays behind them: in reverse, too.

    >>> reverse_time(jnp.array([[1, 2, 3, 0, 9], [1, 2, 3, 4, 5]]), jnp.array([3, 5])).tolist()
    [[3, 2, 1, 9, 0], [5, 4, 3, 2, 1]]
    """
    index = (number[:, None] - 1 - jnp.arange(x.shape[1])) % x.shape[1]
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)


def module_ends(num_layers: int, num_modules: int) -> tuple[int, ...]:
    """Return the layers of an encoder after which each module but the last ends.

    The context counts as one more layer. Modules are as long as each other, or one longer: the
    last ones. As many as layers and context: each is a module (Loewe et al. 2019, section 4.2).

    Raises:
      UserError: fewer modules than one, or more than there are layers and a context.

    >>> module_ends(5, 1), module_ends(5, 2), module_ends(5, 5), module_ends(5, 6)
    ((), (3,), (1, 2, 3, 4), (1, 2, 3, 4, 5))
    """
    if not 1 <= num_modules <= num_layers + 1:
        raise UserError(
            f"model.modules is {num_modules}: an encoder of {num_layers} layers and a context make "
            f"1 to {num_layers + 1}"
        )
    size, rest = divmod(num_layers + 1, num_modules)
    sizes = [size + (number >= num_modules - rest) for number in range(num_modules)]
    return tuple(sum(sizes[: number + 1]) for number in range(num_modules - 1))


def check_cuts(cuts: Sequence[int], encoder: Any) -> None:
    """Check that modules end after different layers of an encoder, in their order.

    Raises:
      UserError: they do not, or it cannot be cut.
    """
    ends = list(cuts)
    if not hasattr(encoder, "through"):
        raise UserError(
            f"{type(encoder).__name__} has no layers to end modules after: give no cuts"
        )
    most = encoder.num_layers
    if ends != sorted({*ends}) or ends[0] < 1 or ends[-1] > most:
        raise UserError(
            f"the modules end after the layers {ends}: name some of 1 to {most}, ascending"
        )
