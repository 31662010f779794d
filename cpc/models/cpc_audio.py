"""Loader of checkpoints in the format of facebookresearch/CPC_audio (Riviere et al. 2020)."""

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
from cpc.types import PyTree, UserError

#: Prefixes of the encoder's and the context's entries.
PARTS = "gEncoder.", "gAR."
#: Words that DataParallel, torch.compile and trainers insert into entry names.
WRAPPERS = frozenset({"module", "model", "_orig_mod"})
#: Training input of these checkpoints: windows of 20,480 samples at 16 kHz, without scaling.
INPUT = {"kind": "audio", "shape": [20_480], "sample_rate_hz": 16_000, "rms": None}
#: Context networks by their number of gates.
CONTEXTS = {3: GRU, 4: LSTM}
#: Entries of each norm. The scale of "channel" is (1, d, 1), that of torch's own norms (d,).
NORMS = {
    "channel": ("weight", "bias"),
    "batch": ("weight", "bias", "running_mean", "running_var"),
    "none": (),
}


def load_cpc_audio(path: str | Path) -> Pretrained:
    """Load the encoder and context of a CPC_audio checkpoint.

    A .pt file of the hub (60k_epoch4.pt of Libri-light) or of a training run is read with torch; a
    state dict in a safetensors or npz file does not need torch. No code in the file is executed.

    Entry names are those of CPC_audio: gEncoder.conv0.weight, gEncoder.batchNorm0.weight,
    gAR.baseNet.weight_ih_l0 and so on. The words `module`, `model` and `_orig_mod`, which wrappers
    insert, are removed. The encoder's norm (channel, batch or none), the context (GRU or LSTM) and
    all widths are inferred from the shapes. The predictor is stored elsewhere in CPC_audio's
    checkpoints and is not read, so the model has z and c but no predictions. Recordings are used
    unscaled, at 16 kHz.
    """
    path = Path(path).expanduser()
    weights = {
        name: np.asarray(array, np.float32)
        for name, array in _read(path).items()
        if not name.endswith("num_batches_tracked")  # a count that only torch's training uses
    }
    width, _, _ = _shape_of(weights, "gEncoder.conv0.weight", 3, path)
    norm = _find_norm(weights, path)
    stacked, context_width = _shape_of(weights, "gAR.baseNet.weight_hh_l0", 2, path)
    gates = stacked // max(1, context_width)
    if gates not in CONTEXTS:
        raise UserError(f"{path} has an unknown context (got {gates} gates): use a GRU or LSTM")
    layers = len({end[1] for name in weights if (end := re.search(r"^gAR\..*_l(\d+)$", name))})
    shapes = {
        **_encoder_shapes(width, norm),
        **_context_shapes(gates, layers, context_width, width),
    }
    expected = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    check_entries(weights, expected, str(path))

    encoder = ConvEncoder(width, norm=norm, padding="same")
    params, stats = _encoder_variables(weights, encoder)
    recurrent = _recurrent_params(weights, gates, layers, context_width)
    variables = {"params": {"encoder": params, "context": recurrent}}
    if stats:
        variables["batch_stats"] = {"encoder": stats}
    context = CONTEXTS[gates](context_width, layers)
    module = CPC(encoder, context, LinearPredictor(12, width))
    about = {"format_read": "facebookresearch/CPC_audio"}
    return Pretrained(module, variables, dict(INPUT), about)


def _read(path: Path) -> dict[str, np.ndarray]:
    """Return the entries of a file without WRAPPERS in their names; of a .pt file, only PARTS."""
    check_path(path, (*SUFFIXES, *TORCH_SUFFIXES))
    if path.suffix not in TORCH_SUFFIXES:
        return _unwrap(read_weights(path), path)
    arrays, config = read_checkpoint(path)
    if config.get("cpc_mode") not in (None, "none"):
        raise UserError(
            f"{path} was trained with cpc_mode {config['cpc_mode']!r}, whose contexts are not "
            "causal: use a checkpoint trained without cpc_mode"
        )
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
            f"{path} lacks entries gEncoder... and gAR... (got {len(entries):,}: {first}"
            f"{', ...' if len(entries) > 3 else ''}): pass a state dict of CPC_audio"
        )
    return unwrapped


def _shape_of(
    weights: Mapping[str, np.ndarray], name: str, num_axes: int, path: Path
) -> tuple[int, ...]:
    if name not in weights or weights[name].ndim != num_axes:
        raise UserError(f"{path} lacks {name} with {num_axes} axes: pass a state dict of CPC_audio")
    return weights[name].shape


def _find_norm(weights: Mapping[str, np.ndarray], path: Path) -> str:
    scale = weights.get("gEncoder.batchNorm0.weight")
    if scale is None:
        return "none"
    if scale.ndim == 3:
        return "channel"
    if "gEncoder.batchNorm0.running_mean" in weights:
        return "batch"
    raise UserError(
        f"encoder in {path} has an instance norm, which depends on the whole recording: use a "
        "checkpoint with channel norm, batch norm or no norm"
    )


def _encoder_shapes(width: int, norm: str) -> dict[str, tuple[int, ...]]:
    shapes = {}
    scale = (1, width, 1) if norm == "channel" else (width,)
    for i, kernel in enumerate(ConvEncoder.kernels):
        shapes[f"gEncoder.conv{i}.weight"] = (width, width if i else 1, kernel)
        shapes[f"gEncoder.conv{i}.bias"] = (width,)
        shapes |= {f"gEncoder.batchNorm{i}.{kind}": scale for kind in NORMS[norm]}
    return shapes


def _context_shapes(
    gates: int, layers: int, context_width: int, width: int
) -> dict[str, tuple[int, ...]]:
    shapes, stacked = {}, gates * context_width
    for i in range(layers):
        shapes |= {
            f"gAR.baseNet.weight_ih_l{i}": (stacked, context_width if i else width),
            f"gAR.baseNet.weight_hh_l{i}": (stacked, context_width),
            f"gAR.baseNet.bias_ih_l{i}": (stacked,),
            f"gAR.baseNet.bias_hh_l{i}": (stacked,),
        }
    return shapes


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
        scale, shift, *running = (
            weights[f"gEncoder.batchNorm{i}.{kind}"].reshape(-1) for kind in NORMS[encoder.norm]
        )
        params[f"norm{i}"] = {"scale": jnp.asarray(scale), "bias": jnp.asarray(shift)}
        if running:  # a bias before batch norm shifts its mean
            mean, var = running
            stats[f"norm{i}"] = {"mean": jnp.asarray(mean - bias), "var": jnp.asarray(var)}
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
        bias = b_h.copy()
        if gates == 3:  # the reset gate multiplies the last gate's recurrent bias: keep it separate
            params[f"bias{i}"] = jnp.asarray(b_h[2 * context_width :])
            bias[2 * context_width :] = 0
        params[f"input{i}"] = {"kernel": jnp.asarray(w_in.T), "bias": jnp.asarray(b_in + bias)}
        params[f"recurrent{i}"] = jnp.asarray(w_h.T)
    return params
