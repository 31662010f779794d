"""Modules as plain data, for a config.json: the type's name and every field."""

import dataclasses
import functools
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from cpc.models.tables import DESCRIBED
from cpc.types import UserError


def describe(value: Any) -> Any:
    """Return a module, or a field of one, as json takes it.

    >>> from cpc.models import GRU
    >>> describe(GRU(8))
    {'type': 'GRU', 'width': 8, 'num_layers': 1, 'dtype': 'float32', 'blocks': 1}
    """
    if isinstance(value, nn.Module):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields = {n: getattr(value, n) for n in names if n not in ("parent", "name")}
        return {"type": type(value).__name__, **_describe_fields(fields)}
    if isinstance(value, DESCRIBED):  # and no module: a NamedTuple, such as Stage
        return {"type": type(value).__name__, **_describe_fields(value._asdict())}
    if callable(value):  # ImageCPC makes a context and a predictor for each direction
        return {"made": describe(value())}
    return [describe(item) for item in value] if isinstance(value, tuple | list) else value


def _describe_fields(fields):
    return {
        name: jnp.dtype(value).name if name == "dtype" else describe(value)
        for name, value in fields.items()
    }


#: Modules that are no part of another.
WHOLE = ("CPC", "ImageCPC", "QuickThoughts", "SegmentalCPC")
#: Of the computation of an exported model.
DTYPES = ("float32", "bfloat16", "float16")
#: Most of what no array has as a size: strides, windows of samples, rates.
LARGEST, LARGEST_HZ = 4096, 2**20


def build(description: Any, arrays: Sequence[tuple[int, ...]] | None = None) -> Any:
    """Return the module that `describe` described, one of `cpc.models.DESCRIBED`.

    Every field is checked against the module's annotations before anything is made of it.

    Args:
      description: as JSON gives it; nothing is believed of it.
      arrays: shapes of the weights. No module has more layers than there are, nor is wider.

    Raises:
      UserError: a type that there is not, or fields that it does not take.

    >>> build({"type": "GRU", "width": 8})
    GRU(
        # attributes
        width = 8
        num_layers = 1
        dtype = float32
        blocks = 1
    )
    """
    sizes = [size for shape in arrays or () for size in shape]
    limits = _Limits(
        LARGEST if arrays is None else len(arrays), max([LARGEST, len(arrays or ()), *sizes])
    )
    return _build(description, "model", limits, WHOLE if arrays is not None else ())


class _Limits(NamedTuple):
    layers: int
    size: int


def _build(description, where, limits, only=()):
    """Return a module, or a part of one: its own parts are no whole models."""
    if not isinstance(description, Mapping):
        raise _wrong(where, description, "a module, with its type and fields")
    known = {kind.__name__: kind for kind in DESCRIBED}
    name = description.get("type")
    if not isinstance(name, str) or name not in known:
        raise UserError(
            f"a model of type {reprlib.repr(name)} is unknown: known are {', '.join(known)}"
        )
    if only and name not in only:
        raise _wrong(where, name, f"one of {', '.join(only)}")
    if where != "model" and name in WHOLE:
        raise _wrong(where, name, "a part of a model")
    hints = typing.get_type_hints(known[name])
    given = {field: value for field, value in description.items() if field != "type"}
    fields = {
        field: _read(value, hints[field], f"{where}.{field}", limits)
        for field, value in given.items()
        if field in hints and field not in ("parent", "name")
    }
    try:
        if len(fields) < len(given):
            raise TypeError("there are no such fields")
        return known[name](**fields)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"the fields {', '.join(given)} make no {name}: {error}") from error


def _read(value, hint, where, limits):
    """Return a field as its annotation has it, from what JSON has for it."""
    field, inner = where.rsplit(".", 1)[-1], typing.get_args(hint)
    if field == "dtype":
        if value not in DTYPES:
            raise _wrong(where, value, f"one of {', '.join(DTYPES)}")
        return jnp.dtype(value)
    if typing.get_origin(hint) is Callable:
        if not isinstance(value, Mapping) or set(value) != {"made"}:
            raise _wrong(where, value, "made of a module")
        make = functools.partial(_build, value["made"], where, limits)
        make()
        return make
    if isinstance(hint, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        is_many = isinstance(value, list)
        of_kind = [one for one in inner if (typing.get_origin(one) is Sequence) == is_many]
        return _read(value, (of_kind or inner)[0], where, limits)
    if typing.get_origin(hint) is Sequence:
        if not isinstance(value, list) or len(value) > limits.layers:
            raise _wrong(where, value, f"a list of at most {limits.layers}")
        return tuple(_read(entry, inner[0], where, limits) for entry in value)
    if hint is float:  # rates of averages, weights of penalties
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise _wrong(where, value, "a number from 0 to 1")
        return float(value)
    if hint not in (int, str, bool):
        return _build(value, where, limits)
    if hint is int:
        is_layers = field in ("num_layers", "num_blocks")
        most = limits.layers if is_layers else limits.size
        most = LARGEST_HZ if field.endswith("_hz") else most
        least = 0 if field == "padding" else 1
        if type(value) is not int or not least <= value <= most:
            raise _wrong(where, value, f"a whole number from {least} to {most}")
    elif type(value) is not hint:
        raise _wrong(where, value, f"of type {hint.__name__}")
    return value


def _wrong(where: str, value: Any, what: str) -> UserError:
    return UserError(f"{where} is {reprlib.repr(value)}: it must be {what}")
