"""Any layer of a model, as the last one of a smaller model with the variables that it needs.

Every encoder and context knows its own `num_layers` and `upto(number, variables)`; a model that is
made of them knows both of its parts, "z" and "c".
"""

import re
from typing import Any

import flax.linen as nn

from cpc.types import PyTree, UserError


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

    Raises:
        UserError: there is no such layer; those that there are, are named.
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
