"""Layers with biases in float32, and any layer as the last one of a smaller model.

A bias has the sum of all places' gradients. In bfloat16 such a sum stops growing at some hundred
times its terms, and a batch has thousands of places.

Every encoder and context knows its own `num_layers` and `upto(number, variables)`; a model that is
made of them knows both of its parts, "z" and "c".
"""

import re
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Int

from cpc.types import PyTree, UserError


def promote_all_but_bias(x: Any, kernel: Any, bias: Any, *, dtype: Any) -> tuple[Any, Any, Any]:
    """Return input and kernel in the dtype of the computation, and the bias in its own."""
    return *promote_dtype(x, kernel, dtype=dtype), bias


class Dense(nn.Dense):
    """Dense layer, x W + b, whose bias stays in float32."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """Return the layer's output in `dtype`."""
        return super().__call__(inputs).astype(self.dtype)


class Conv(nn.Conv):
    """Convolution (cross-correlation with W, plus b) whose bias stays in float32."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """Return the layer's output in `dtype`."""
        return super().__call__(inputs).astype(self.dtype)


def layer_depths(module: Any) -> dict[str, int]:
    """Return the names of all layers and how deep in their part they lie; z and c are the last.

    >>> from cpc.models import CPC, GRU, ConvEncoder, LinearPredictor
    >>> layer_depths(CPC(ConvEncoder(), GRU(), LinearPredictor(12, 512)))
    {'z1': 1, 'z2': 2, 'z3': 3, 'z4': 4, 'z5': 5, 'z': 5, 'c1': 1, 'c': 1}
    """
    depths = {}
    for part, depth in module.num_layers.items():
        depths |= {f"{part}{n}": n for n in range(1, depth + 1)} | {part: depth}
    return depths


def end_at(module: Any, variables: PyTree, layer: str) -> tuple[Any, PyTree]:
    """Return a model whose z, or c, is this layer: its encoder, or its contexts, end there.

    What comes last in a part comes last there too: the mean over a patch's places, a Transformer's
    norm. The last norm of a ResNet was learned for another width and has no scale and shift then.
    """
    depths = layer_depths(module)
    if layer not in depths:
        raise UserError(f"the model has no layer {layer!r}: choose one of {', '.join(depths)}")
    return module.upto(layer[0], depths[layer], variables)


def part_of(variables: PyTree, name: str) -> PyTree:
    """Return the variables of a submodule.

    >>> part_of({"params": {"encoder": {"w": 1}}, "batch_stats": {}}, "encoder")
    {'params': {'w': 1}}
    """
    return {kind: tree[name] for kind, tree in variables.items() if name in tree}


def with_part(variables: PyTree, name: str, own: PyTree) -> PyTree:
    """Return the variables with those of a submodule replaced.

    >>> with_part({"params": {"encoder": {"w": 1}, "context": {}}}, "encoder", {"params": {}})
    {'params': {'encoder': {}, 'context': {}}}
    """
    return {
        kind: {**tree, name: own[kind]} if kind in own else tree for kind, tree in variables.items()
    }


def first_layers(variables: PyTree, number: int) -> PyTree:
    """Return the variables without those of layers after the first `number`.

    The name of a layer's variable ends in the layer's index, from 0; others are of all layers.

    >>> first_layers({"params": {"input": 7, "norm0": {"scale": 8}, "norm1": {"scale": 9}}}, 1)
    {'params': {'input': 7, 'norm0': {'scale': 8}}}
    """
    kept = {}
    for name, value in variables.items():
        index = re.search(r"\d+$", name)
        if index is None:
            kept[name] = first_layers(value, number) if isinstance(value, dict) else value
        elif int(index[0]) < number:
            kept[name] = value
    return kept


class LayerStack(nn.Module):
    """A module of `num_layers` layers that is complete after any of them."""

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["LayerStack", PyTree]:
        """Return the module of the first `number` layers, and its variables."""
        return self.clone(num_layers=number), first_layers(variables, number)


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
    """Check that modules end after different layers of an encoder, in their order."""
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
