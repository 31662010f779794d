"""Checkpoints in the format of facebookresearch/CPC_audio (Riviere et al. 2020)."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from cpc.models.contexts import GRU, LSTM
from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder
from cpc.models.load import Pretrained
from cpc.models.predictors import LinearPredictor
from cpc.models.weights import check_entries, read_weights
from cpc.types import PyTree, UserError

SAMPLE_RATE_HZ = 16_000
#: Samples of its training windows.
WINDOW_SAMPLES = 20_480
#: Gates of a unit -> the context of that many.
CONTEXTS = {3: GRU, 4: LSTM}


class _Entry(NamedTuple):
    shape: tuple[int, ...]


def load_cpc_audio(path: str | Path) -> Pretrained:
    """Encoder and context of a state dict in a safetensors or npz file, by its own names.

    Entries are gEncoder.conv0.weight, gEncoder.batchNorm0.weight, gAR.baseNet.weight_ih_l0 and so
    on. The encoder's norm (channel, batch or none), the context (GRU or LSTM) and all widths follow
    from their shapes. Its predictor is kept elsewhere in its checkpoints and is not read: z and c
    are there, predictions are not. Recordings are taken as they are, at 16 kHz.

    Raises:
      UserError: no such file; missing, unknown or misshapen entries, all of them listed; another
        norm or context.
    """
    path = Path(path).expanduser()
    entries = read_weights(path)
    weights = {
        name: np.asarray(array, np.float32)
        for name, array in entries.items()
        if not name.endswith("num_batches_tracked")  # a count that only torch's training reads
    }
    (width,) = _shape(weights, "gEncoder.conv", ".bias", 1, path)
    stacked, context_width = _shape(weights, "gAR.baseNet.weight_hh_l", "", 2, path)
    gates = stacked // max(1, context_width)
    if gates not in CONTEXTS:
        raise UserError(
            f"the context in {path} has {gates} gates: a GRU, which has 3, or an LSTM of 4 is known"
        )
    norm = _norm(weights, path)
    layers = sum(name.startswith("gAR.baseNet.weight_hh_l") for name in weights)
    encoder = ConvEncoder(width, norm=norm, padding="same")
    wanted = {**_encoder_entries(encoder), **_context_entries(gates, layers, width, context_width)}
    check_entries(weights, wanted, str(path))

    params, stats = _encoder_variables(weights, encoder)
    recurrent = _recurrent_params(weights, gates, layers, context_width)
    variables = {"params": {"encoder": params, "context": recurrent}}
    if stats:
        variables["batch_stats"] = {"encoder": stats}
    context = CONTEXTS[gates](context_width, layers)
    module = CPC(encoder, context, LinearPredictor(12, width))
    given = {
        "kind": "audio",
        "shape": [WINDOW_SAMPLES],
        "sample_rate_hz": SAMPLE_RATE_HZ,
        "rms": None,
    }
    return Pretrained(module, variables, given, {"format_read": "facebookresearch/CPC_audio"})


def _shape(
    weights: Mapping[str, np.ndarray], start: str, end: str, rank: int, path: Path
) -> tuple[int, ...]:
    """What all other shapes follow from: that of the first entry of a kind."""
    for name, array in weights.items():
        if name.startswith(start) and name.endswith(end) and array.ndim == rank:
            return array.shape
    raise UserError(
        f"{path} has no entry {start}...{end}: give a state dict of CPC_audio with a convolutional "
        "encoder and a GRU or LSTM"
    )


def _norm(weights: Mapping[str, np.ndarray], path: Path) -> str:
    if not any(name.startswith("gEncoder.batchNorm") for name in weights):
        return "none"
    if any(name.endswith("running_mean") for name in weights):
        return "batch"
    scale = weights.get("gEncoder.batchNorm0.weight")
    if scale is not None and scale.ndim == 1:  # torch's own norms; that of CPC_audio is (1, d, 1)
        raise UserError(
            f"the encoder in {path} has an instance norm, whose frames see the whole recording: "
            "channel norm, batch norm and no norm are known"
        )
    return "channel"


def _encoder_entries(encoder: ConvEncoder) -> dict[str, _Entry]:
    entries, width = {}, encoder.width
    for i, kernel in enumerate(encoder.kernels):
        entries[f"gEncoder.conv{i}.weight"] = _Entry((width, width if i else 1, kernel))
        entries[f"gEncoder.conv{i}.bias"] = _Entry((width,))
        kinds = {
            "none": (),
            "channel": ("weight", "bias"),
            "batch": ("weight", "bias", "running_mean", "running_var"),
        }[encoder.norm]
        shape = (1, width, 1) if encoder.norm == "channel" else (width,)
        entries |= {f"gEncoder.batchNorm{i}.{kind}": _Entry(shape) for kind in kinds}
    return entries


def _context_entries(gates: int, layers: int, width: int, context_width: int) -> dict[str, _Entry]:
    entries, stacked = {}, gates * context_width
    for i in range(layers):
        entries |= {
            f"gAR.baseNet.weight_ih_l{i}": _Entry((stacked, context_width if i else width)),
            f"gAR.baseNet.weight_hh_l{i}": _Entry((stacked, context_width)),
            f"gAR.baseNet.bias_ih_l{i}": _Entry((stacked,)),
            f"gAR.baseNet.bias_hh_l{i}": _Entry((stacked,)),
        }
    return entries


def _encoder_variables(
    weights: Mapping[str, np.ndarray], encoder: ConvEncoder
) -> tuple[PyTree, PyTree]:
    params, stats = {}, {}
    for i in range(len(encoder.kernels)):
        bias = weights[f"gEncoder.conv{i}.bias"]
        # torch: (out, in, width); here (width, in, out)
        params[f"kernel{i}"] = jnp.asarray(weights[f"gEncoder.conv{i}.weight"].transpose(2, 1, 0))
        if encoder.norm != "batch":
            params[f"bias{i}"] = jnp.asarray(bias)
        if encoder.norm == "none":
            continue
        norm = {
            kind: weights[name].reshape(-1)
            for kind in ("weight", "bias", "running_mean", "running_var")
            if (name := f"gEncoder.batchNorm{i}.{kind}") in weights
        }
        params[f"norm{i}"] = {
            "scale": jnp.asarray(norm["weight"]),
            "bias": jnp.asarray(norm["bias"]),
        }
        if encoder.norm == "batch":  # a bias before batch norm is a shift of its mean
            mean, var = norm["running_mean"] - bias, norm["running_var"]
            stats[f"norm{i}"] = {"mean": jnp.asarray(mean), "var": jnp.asarray(var)}
    return params, stats


def _recurrent_params(
    weights: Mapping[str, np.ndarray], gates: int, layers: int, context_width: int
) -> PyTree:
    params = {}
    for i in range(layers):
        w_in, w_h, b_in, b_h = (
            weights[f"gAR.baseNet.{kind}_l{i}"]
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        added = b_h.copy()
        if gates == 3:  # the last gate's second bias stays inside: it is multiplied by the reset
            params[f"bias{i}"] = jnp.asarray(b_h[2 * context_width :])
            added[2 * context_width :] = 0
        params[f"input{i}"] = {"kernel": jnp.asarray(w_in.T), "bias": jnp.asarray(b_in + added)}
        params[f"recurrent{i}"] = jnp.asarray(w_h.T)
    return params
