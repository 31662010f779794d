"""Modules by their config names, and conversion of modules to and from JSON data."""

import dataclasses
import functools
import reprlib
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from cpc.models import predictors
from cpc.models.contexts import GRU, LSTM, CausalConv, CausalTransformer, MaskedRowConv, RowGRU
from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder, LogMelEncoder
from cpc.models.image_cpc import ImageCPC
from cpc.models.image_encoders import ResNet, SmallConvEncoder, Stage
from cpc.models.quantized import QuantizedEncoder
from cpc.models.segmental import SegmentalCPC
from cpc.models.sentence_encoder import QuickThoughts, SentenceEncoder
from cpc.models.state_space import StateSpace
from cpc.types import UserError

#: Waveform encoders by config name. All accept a width, and norm, padding, dtype and remat as
#: keyword arguments.
AUDIO_ENCODERS = {"conv": ConvEncoder, "log_mel": LogMelEncoder, "cepstra": LogMelEncoder}

#: Predictors by config name. All accept the number of offsets and a width.
PREDICTORS = {
    "linear": predictors.LinearPredictor,
    "affine": functools.partial(predictors.LinearPredictor, use_bias=True),
    "hidden": predictors.HiddenPredictor,
    "transformer": predictors.TransformerPredictor,
    "transformers": predictors.TransformersPredictor,
}

#: All classes that the description of an exported model may contain. No other class is called.
DESCRIBED = (
    *(CPC, *AUDIO_ENCODERS.values(), QuantizedEncoder, GRU, LSTM, CausalConv, CausalTransformer),
    *(kind for kind in PREDICTORS.values() if isinstance(kind, type)),
    *(ImageCPC, SmallConvEncoder, ResNet, Stage, MaskedRowConv, RowGRU),
    *(QuickThoughts, SentenceEncoder, SegmentalCPC, StateSpace),
)
TYPES = {kind.__name__: kind for kind in DESCRIBED}
#: Computation dtypes of exported models.
DTYPES = ("float32", "bfloat16", "float16")
#: Largest number in a description, such as a width, stride, window length or rate.
MAX_NUMBER = 2**20
#: Largest number of layers, as layers take time even without weights, and the fields that set it.
MAX_LAYERS, LAYERS = 256, ("num_layers", "num_blocks")


def describe(value: Any) -> Any:
    """Convert a module, or the value of one of its fields, to JSON data.

    >>> from cpc.models import GRU
    >>> describe(GRU(8))
    {'type': 'GRU', 'width': 8, 'num_layers': 1, 'dtype': 'float32', 'blocks': 1}
    """
    is_module = isinstance(value, nn.Module)
    if is_module or isinstance(value, Stage):
        names = [field.name for field in dataclasses.fields(value)] if is_module else value._fields
        fields = [(name, getattr(value, name)) for name in names if name not in ("parent", "name")]
        described = {n: jnp.dtype(x).name if n == "dtype" else describe(x) for n, x in fields}
        return {"type": type(value).__name__, **described}
    if callable(value):  # ImageCPC creates a context and a predictor for each direction
        return {"made": describe(value())}
    return [describe(item) for item in value] if isinstance(value, tuple | list) else value


def build(description: Any, max_number: int = MAX_NUMBER) -> Any:
    """Build a module from a description that `describe` returned.

    Only classes in `DESCRIBED` are called. Invalid fields raise errors of many kinds, either here
    or when the module is initialized.

    >>> build({"type": "GRU", "width": 8}).width
    8
    """
    if isinstance(description, list):
        if len(description) > MAX_LAYERS:
            raise UserError(f"list has {len(description):,} entries: use at most {MAX_LAYERS}")
        return tuple(map(build, description))
    if isinstance(description, int | float) and not 0 <= description <= max_number:
        raise UserError(f"number is out of range (got {description}): use 0 to {max_number:,}")
    if not isinstance(description, dict):
        return description
    if set(description) == {"made"}:
        return functools.partial(build, description["made"])
    name = description.get("type")
    if not isinstance(name, str) or name not in TYPES:
        raise UserError(f"type {reprlib.repr(name)} is unknown: choose one of {', '.join(TYPES)}")
    if (dtype := description.get("dtype", DTYPES[0])) not in DTYPES:
        raise UserError(f"dtype {reprlib.repr(dtype)} is unknown: choose from {', '.join(DTYPES)}")
    fields: dict[str, Any] = {
        field: jnp.dtype(value)
        if field == "dtype"
        else build(value, MAX_LAYERS if field in LAYERS else MAX_NUMBER)
        for field, value in description.items()
        if field != "type"
    }
    return TYPES[name](**fields)
