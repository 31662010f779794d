"""Layers with float32 biases, and functions that truncate a model after any of its layers.

The gradient of a bias is a sum over all positions. In bfloat16 such a sum stops growing at a few
hundred times its terms, and a batch has thousands of positions.

Encoders and contexts have `num_layers` and `upto(number, variables)`. Models have both for their
encoder, "z", and their context, "c".
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Int

from cpc.types import PyTree, UserError


def promote_all_but_bias(x: Any, kernel: Any, bias: Any, *, dtype: Any) -> tuple[Any, Any, Any]:
    """Promote input and kernel to `dtype`, and return the bias unchanged."""
    return *promote_dtype(x, kernel, dtype=dtype), bias


class Dense(nn.Dense):
    """A dense layer, x W + b, whose bias stays in float32."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """Return the output of the layer in `dtype`."""
        return super().__call__(inputs).astype(self.dtype)


class Conv(nn.Conv):
    """A convolution, computed as cross-correlation, whose bias stays in float32."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """Return the output of the layer in `dtype`."""
        return super().__call__(inputs).astype(self.dtype)


def layer_depths(module: Any) -> dict[str, int]:
    """Return the depth of each layer by name, where z and c without a number are the last layers.

    >>> from cpc.models import CPC, GRU, ConvEncoder, LinearPredictor
    >>> layer_depths(CPC(ConvEncoder(), GRU(), LinearPredictor(12, 512)))
    {'z1': 1, 'z2': 2, 'z3': 3, 'z4': 4, 'z5': 5, 'z': 5, 'c1': 1, 'c': 1}
    """
    depths = {}
    for part, depth in module.num_layers.items():
        depths |= {f"{part}{n}": n for n in range(1, depth + 1)} | {part: depth}
    return depths


def end_at(module: Any, variables: PyTree, layer: str) -> tuple[Any, PyTree]:
    """Truncate a model's encoder or context, so that its z or c is the given layer's output.

    The final operation of an encoder or context, such as the mean over a patch's positions or the
    norm of a Transformer, then follows the new last layer. See `ResNet.upto` for the final norm of
    a ResNet.
    """
    depths = layer_depths(module)
    if layer not in depths:
        raise UserError(f"layer {layer!r} is unknown: choose one of {', '.join(depths)}")
    return module.upto(layer[0], depths[layer], variables)


def part_of(variables: PyTree, name: str) -> PyTree:
    """Return a submodule's variables.

    >>> part_of({"params": {"encoder": {"w": 1}}, "batch_stats": {}}, "encoder")
    {'params': {'w': 1}}
    """
    return {kind: tree[name] for kind, tree in variables.items() if name in tree}


def with_part(variables: PyTree, name: str, own: PyTree) -> PyTree:
    """Replace a submodule's variables with `own`.

    >>> with_part({"params": {"encoder": {"w": 1}, "context": {}}}, "encoder", {"params": {}})
    {'params': {'encoder': {}, 'context': {}}}
    """
    return {
        kind: {**tree, name: own[kind]} if kind in own else tree for kind, tree in variables.items()
    }


def first_layers(variables: PyTree, number: int) -> PyTree:
    """Return the variables of the first `number` layers, and all that belong to no single layer.

    The names of layer variables end in the index of the layer, counted from 0.

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
    """A module with `num_layers` layers that can be truncated after any layer."""

    @nn.nowrap
    def upto(self, number: int, variables: PyTree) -> tuple["LayerStack", PyTree]:
        """Return the module's first `number` layers and their variables."""
        return self.clone(num_layers=number), first_layers(variables, number)


TIME_DIRECTIONS = ("forward", "backward")


def reverse_time(x: Any, number: Int[Array, " b"]) -> Any:
    """Reverse the first `number` entries of each row (b, t, ...).

    The padding that follows stays at the end and is also reversed, so applying the function twice
    is the identity.

    >>> reverse_time(jnp.array([[1, 2, 3, 0, 9], [1, 2, 3, 4, 5]]), jnp.array([3, 5])).tolist()
    [[3, 2, 1, 9, 0], [5, 4, 3, 2, 1]]
    """
    index = (number[:, None] - 1 - jnp.arange(x.shape[1])) % x.shape[1]
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)


def module_ends(num_layers: int, num_modules: int) -> tuple[int, ...]:
    """Return the number of the layer at which each module except the last one ends.

    The context counts as one more layer. The last modules may be one layer longer than the others.
    With num_layers + 1 modules, each layer and the context is one (Loewe et al. 2019, section 4.2).

    >>> module_ends(5, 1), module_ends(5, 2), module_ends(5, 5), module_ends(5, 6)
    ((), (3,), (1, 2, 3, 4), (1, 2, 3, 4, 5))
    """
    if not 1 <= num_modules <= num_layers + 1:
        raise UserError(f"model.modules is {num_modules}: set a number from 1 to {num_layers + 1}")
    size, rest = divmod(num_layers + 1, num_modules)
    sizes = [size] * (num_modules - rest) + [size + 1] * rest
    return tuple(itertools.accumulate(sizes[:-1]))


def check_cuts(cuts: Sequence[int], encoder: Any) -> None:
    """Check that `cuts` are ascending layer numbers of an encoder."""
    ends = list(cuts)
    if not hasattr(encoder, "through"):
        raise UserError(f"{type(encoder).__name__} has no layers to cut after: leave cuts empty")
    if ends != sorted({*ends}) or ends[0] < 1 or ends[-1] > encoder.num_layers:
        raise UserError(f"cuts must be ascending within 1 to {encoder.num_layers} (got {ends})")
