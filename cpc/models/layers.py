"""Any layer of a model, as the last one of a smaller model with the same variables."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder
from cpc.models.image_encoders import SmallConvEncoder
from cpc.models.resnet import ResNet
from cpc.types import PyTree, UserError


def layer_depths(module: Any) -> dict[str, int]:
    """Names of layers -> how many their part has up to there; z and c are the last ones.

    >>> from cpc.models import GRU, LinearPredictor
    >>> layer_depths(CPC(ConvEncoder(), GRU(), LinearPredictor(12, 512)))
    {'z1': 1, 'z2': 2, 'z3': 3, 'z4': 4, 'z5': 5, 'z': 5, 'c1': 1, 'c': 1}
    """
    context = module.context if isinstance(module, CPC) else module.make_context()
    depths = {}
    for letter, depth in (("z", _depth(module.encoder)), ("c", _depth(context))):
        depths |= {f"{letter}{n}": n for n in range(1, depth + 1)} | {letter: depth}
    return depths


def end_at(module: Any, variables: PyTree, layer: str) -> tuple[Any, PyTree]:
    """A model whose z, or c, is this layer: its encoder, or its contexts, end there.

    What comes last in a part comes last there too: the mean over a patch's places, a Transformer's
    norm. The last norm of a ResNet was learned for another width and has no scale and shift then.

    Raises:
      UserError: no such layer; those that there are, are named.
    """
    depths = layer_depths(module)
    if layer not in depths:
        raise UserError(f"the model has no layer {layer!r}: choose one of {', '.join(depths)}")
    number = depths[layer]
    if layer.startswith("z"):
        encoder: Any = _first(module.encoder, number)
        if isinstance(encoder, ResNet) and encoder.norm != "none" and encoder != module.encoder:
            variables = _without_last_norm(variables, encoder.stages[-1].width)
        return module.clone(encoder=encoder), variables
    if isinstance(module, CPC):
        return module.clone(context=_first(module.context, number)), variables
    return module.clone(make_context=lambda: _first(module.make_context(), number)), variables


def _depth(part: Any) -> int:
    """Layers of an encoder or a context, stages of a ResNet."""
    if isinstance(part, ConvEncoder):
        return len(part.kernels)
    if isinstance(part, SmallConvEncoder):
        return len(part.widths)
    return len(part.stages) if isinstance(part, ResNet) else part.num_layers


def _first(part: Any, number: int) -> nn.Module:
    """The part that ends after so many of its layers."""
    if isinstance(part, ConvEncoder):
        padding = part.padding if isinstance(part.padding, str) else part.padding[:number]
        kernels, strides = part.kernels[:number], part.strides[:number]
        return part.clone(kernels=kernels, strides=strides, padding=padding)
    if isinstance(part, SmallConvEncoder):
        return part.clone(widths=part.widths[:number])
    if isinstance(part, ResNet):
        return part.clone(stages=part.stages[:number])
    return part.clone(num_layers=number)


def _without_last_norm(variables: PyTree, width: int) -> PyTree:
    """Scale 1 and shift 0, of batch norm mean 0 and variance 1, for the norm that ends a ResNet."""

    def plain(norm):
        return {name: jnp.full(width, float(name in ("scale", "var"))) for name in norm}

    return {
        kind: {**tree, "encoder": {**tree["encoder"], "norm": plain(tree["encoder"]["norm"])}}
        for kind, tree in variables.items()
    }
