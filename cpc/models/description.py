"""Modules as plain data, for a config.json: the type's name and every field."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from cpc import models
from cpc.types import UserError


def describe(value: Any) -> Any:
    """Return a module, or a field of one, as json takes it.

    >>> from cpc.models import GRU
    >>> describe(GRU(8))
    {'type': 'GRU', 'width': 8, 'num_layers': 1, 'dtype': 'float32'}
    """
    if isinstance(value, nn.Module):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields = {n: getattr(value, n) for n in names if n not in ("parent", "name")}
        return {"type": type(value).__name__, **_describe_fields(fields)}
    if isinstance(value, models.DESCRIBED):  # and no module: a NamedTuple, such as Stage
        return {"type": type(value).__name__, **_describe_fields(value._asdict())}
    if callable(value):  # ImageCPC makes a context and a predictor for each direction
        return {"made": describe(value())}
    return [describe(item) for item in value] if isinstance(value, tuple | list) else value


def _describe_fields(fields):
    return {
        name: jnp.dtype(value).name if name == "dtype" else describe(value)
        for name, value in fields.items()
    }


def build(description: Any) -> Any:
    """Return the module that `describe` described, one of `cpc.models.DESCRIBED`.

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
    known = {kind.__name__: kind for kind in models.DESCRIBED}
    name = description.get("type")
    if name not in known:
        raise UserError(f"a model of type {name!r} is unknown: known are {', '.join(known)}")
    try:
        return known[name](**fields)
    except TypeError as error:
        raise UserError(f"the fields {', '.join(fields)} make no {name}: {error}") from error
