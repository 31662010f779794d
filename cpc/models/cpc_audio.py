"""A loader for checkpoints in the format of facebookresearch/CPC_audio (Riviere et al. 2020)."""

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cpc.models.contexts import GRU, LSTM
from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder
from cpc.models.load import (
    SUFFIXES,
    TORCH_SUFFIXES,
    Pretrained,
    check_entries,
    check_path,
    read_checkpoint,
    read_weights,
)
from cpc.models.predictors import LinearPredictor
from cpc.types import UserError

#: Prefixes of the encoder's and the context's entries.
PARTS = "gEncoder.", "gAR."
#: Words that DataParallel, torch.compile and trainers insert into entry names.
WRAPPERS = frozenset({"module", "model", "_orig_mod"})
#: Training input of these checkpoints, which are unscaled windows of 20,480 samples at 16 kHz.
INPUT = {"kind": "audio", "shape": [20_480], "sample_rate_hz": 16_000, "rms": None}
#: Context networks by their number of gates.
CONTEXTS = {3: GRU, 4: LSTM}
#: Entries of each norm. The scale has shape (1, d, 1) for "channel", and (d,) for torch's norms.
NORMS = {
    "channel": ("weight", "bias"),
    "batch": ("weight", "bias", "running_mean", "running_var"),
    "none": (),
}


def load_cpc_audio(path: str | Path) -> Pretrained:
    """Load the encoder and context of a CPC_audio checkpoint.

    A .pt file from the hub (60k_epoch4.pt of Libri-light) or from a training run is read with
    torch. State dicts in safetensors or npz files do not need torch. No code in a file is executed.

    Entries are named as in CPC_audio, for example gEncoder.conv0.weight or
    gAR.baseNet.weight_ih_l0, also with the words of `WRAPPERS` inserted. The norm (channel, batch
    or none), the context (GRU or LSTM) and the widths are inferred from the shapes. The predictor,
    which CPC_audio stores elsewhere, is not read. Recordings are used at 16 kHz without scaling.
    """
    path = Path(path).expanduser()
    weights = {
        name: np.asarray(array, np.float32)
        for name, array in _read(path).items()
        if not name.endswith("num_batches_tracked")  # only used in training with torch
    }
    width, _, _ = _shape_of(weights, "gEncoder.conv0.weight", 3, path)
    norm = _find_norm(weights, path)
    stacked, context_width = _shape_of(weights, "gAR.baseNet.weight_hh_l0", 2, path)
    gates = stacked // max(1, context_width)
    if gates not in CONTEXTS:
        raise UserError(f"{path} has an unknown context (got {gates} gates): use a GRU or LSTM")
    layers = len({end[1] for name in weights if (end := re.search(r"^gAR\..*_l(\d+)$", name))})
    expected: dict[str, jax.ShapeDtypeStruct] = {}

    def take(name: str, *shape: int) -> np.ndarray:
        """Return an entry, or zeros if it does not fit, which `check_entries` reports later."""
        expected[name] = jax.ShapeDtypeStruct(shape, np.float32)
        array = weights.get(name)
        return array if array is not None and array.shape == shape else np.zeros(shape, np.float32)

    encoder = ConvEncoder(width, norm=norm, padding="same")
    params, stats = _encoder_variables(take, encoder)
    recurrent = _recurrent_params(take, gates, layers, context_width, width)
    check_entries(weights, expected, str(path))
    variables = {"params": {"encoder": params, "context": recurrent}}
    if stats:
        variables["batch_stats"] = {"encoder": stats}
    context = CONTEXTS[gates](context_width, layers)
    module = CPC(encoder, context, LinearPredictor(12, width))
    about = {"format_read": "facebookresearch/CPC_audio"}
    return Pretrained(module, jax.tree.map(jnp.asarray, variables), dict(INPUT), about)


def _read(path: Path) -> dict[str, np.ndarray]:
    """Return the entries of a file, without WRAPPERS in their names, and for .pt only the PARTS."""
    check_path(path, (*SUFFIXES, *TORCH_SUFFIXES))
    if path.suffix not in TORCH_SUFFIXES:
        return _unwrap(read_weights(path), path)
    arrays, config = read_checkpoint(path)
    if config.get("cpc_mode") not in (None, "none"):
        raise UserError(f"{path} has non-causal cpc_mode {config['cpc_mode']!r}: use another file")
    return {n: array for n, array in _unwrap(arrays, path).items() if n.startswith(PARTS)}


def _unwrap(entries: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    unwrapped = {
        ".".join(word for word in name.split(".") if word not in WRAPPERS): array
        for name, array in entries.items()
    }
    if len(unwrapped) < len(entries):
        raise UserError(f"{path} has entries with and without a prefix such as module.: save one")
    if not any(name.startswith(PARTS) for name in unwrapped):
        first = ", ".join(map(reprlib.repr, list(entries)[:3])) or "none"
        raise UserError(
            f"{path} has no entries gEncoder... or gAR... (got {len(entries):,}, first {first}): "
            "pass a state dict of CPC_audio"
        )
    return unwrapped


def _shape_of(weights, name, num_axes, path):
    if name not in weights or weights[name].ndim != num_axes:
        raise UserError(f"{path} has no {name} with {num_axes} axes: pass a CPC_audio state dict")
    return weights[name].shape


def _find_norm(weights: Mapping[str, np.ndarray], path: Path) -> str:
    scale = weights.get("gEncoder.batchNorm0.weight")
    if scale is None:
        return "none"
    if scale.ndim == 3:
        return "channel"
    if "gEncoder.batchNorm0.running_mean" in weights:
        return "batch"
    raise UserError(  # instance norm depends on the whole recording
        f"encoder in {path} has an instance norm: use a model with channel norm, batch norm or none"
    )


def _encoder_variables(take, encoder):
    params, stats, width = {}, {}, encoder.width
    scale = (1, width, 1) if encoder.norm == "channel" else (width,)
    for i, kernel in enumerate(encoder.kernels):
        weight = take(f"gEncoder.conv{i}.weight", width, width if i else 1, kernel)
        params[f"kernel{i}"] = weight.transpose(2, 1, 0)  # from torch's (out, in, width)
        bias = take(f"gEncoder.conv{i}.bias", width)
        if encoder.norm != "batch":
            params[f"bias{i}"] = bias
        of_norm = [
            take(f"gEncoder.batchNorm{i}.{kind}", *scale).reshape(-1)
            for kind in NORMS[encoder.norm]
        ]
        if of_norm:
            params[f"norm{i}"] = {"scale": of_norm[0], "bias": of_norm[1]}
        if encoder.norm == "batch":  # a bias before batch norm shifts its mean
            stats[f"norm{i}"] = {"mean": of_norm[2] - bias, "var": of_norm[3]}
    return params, stats


def _recurrent_params(take, gates, layers, context_width, width):
    params, stacked = {}, gates * context_width
    for i in range(layers):
        w_in = take(f"gAR.baseNet.weight_ih_l{i}", stacked, context_width if i else width)
        w_h = take(f"gAR.baseNet.weight_hh_l{i}", stacked, context_width)
        b_in, b_h = (take(f"gAR.baseNet.bias_{kind}_l{i}", stacked) for kind in ("ih", "hh"))
        bias = b_h.copy()
        if gates == 3:  # separate, because the reset gate multiplies the last recurrent bias
            params[f"bias{i}"] = b_h[2 * context_width :]
            bias[2 * context_width :] = 0
        params[f"input{i}"] = {"kernel": w_in.T, "bias": b_in + bias}
        params[f"recurrent{i}"] = w_h.T
    return params
