"""Modules as plain data, for a config.json: the type's name and every field."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from cpc.models.contexts import GRU, LSTM, CausalConv, CausalTransformer
from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder
from cpc.models.image_cpc import ImageCPC
from cpc.models.image_encoders import SmallConvEncoder
from cpc.models.predictors import LinearPredictor
from cpc.models.resnet import ResNet, Stage
from cpc.models.row_contexts import MaskedRowConv, RowGRU
from cpc.types import UserError

#: All that a file may name: it describes these and can call nothing else.
TYPES: tuple[type, ...] = (
    *(CPC, ConvEncoder, GRU, LSTM, CausalConv, CausalTransformer, LinearPredictor),
    *(ImageCPC, SmallConvEncoder, ResNet, Stage, MaskedRowConv, RowGRU),
)


def describe(value: Any) -> Any:
    """A module, or a field of one, as json takes it.

    >>> describe(GRU(8))
    {'type': 'GRU', 'width': 8, 'num_layers': 1, 'dtype': 'float32'}
    """
    if isinstance(value, nn.Module):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields = {n: getattr(value, n) for n in names if n not in ("parent", "name")}
        return {"type": type(value).__name__, **_describe_fields(fields)}
    if isinstance(value, Stage):
        return {"type": "Stage", **_describe_fields(value._asdict())}
    if callable(value):  # ImageCPC makes a context and a predictor for each direction
        return {"made": describe(value())}
    return [describe(item) for item in value] if isinstance(value, tuple | list) else value


def _describe_fields(fields):
    return {
        name: jnp.dtype(value).name if name == "dtype" else describe(value)
        for name, value in fields.items()
    }


def build(description: Any) -> Any:
    """The module that `describe` described.

    Raises:
      UserError: a type that there is not, or fields that it does not take.

    >>> build({"type": "GRU", "width": 8})
    GRU(
        # attributes
        width = 8
        num_layers = 1
        dtype = float32
    )
    """
    if isinstance(description, list):
        return tuple(build(item) for item in description)
    if not isinstance(description, Mapping):
        return description
    if "made" in description:
        return functools.partial(build, description["made"])
    fields = {name: build(value) for name, value in description.items() if name != "type"}
    if "dtype" in fields:
        fields["dtype"] = jnp.dtype(fields["dtype"])
    known = {kind.__name__: kind for kind in TYPES}
    name = description.get("type")
    if name not in known:
        raise UserError(f"a model of type {name!r} is unknown: known are {', '.join(known)}")
    try:
        return known[name](**fields)
    except TypeError as error:
        raise UserError(f"the fields {', '.join(fields)} make no {name}: {error}") from error
