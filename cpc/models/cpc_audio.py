"""Checkpoints in the format of facebookresearch/CPC_audio (Riviere et al. 2020)."""

import re
import reprlib
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from cpc.models import torch_file
from cpc.models.contexts import GRU, LSTM
from cpc.models.cpc import CPC
from cpc.models.encoders import ConvEncoder
from cpc.models.load import Pretrained
from cpc.models.predictors import LinearPredictor
from cpc.models.weights import SUFFIXES, check_entries, check_path, read_weights
from cpc.types import PyTree, UserError

SAMPLE_RATE_HZ = 16_000
#: How the names of encoder and context begin.
PARTS = "gEncoder.", "gAR."
#: Words that DataParallel, torch.compile and trainers put into the names of entries.
WRAPPERS = frozenset({"module", "model", "_orig_mod"})
#: Entries of an encoder and a context of 16 layers: more are not a model of this format.
MAX_ENTRIES = 128
#: Samples of its training windows.
WINDOW_SAMPLES = 20_480
#: Gates of a unit -> the context of that many.
CONTEXTS = {3: GRU, 4: LSTM}
#: Entries of a layer's norm. The scale of "channel" is (1, d, 1), that of torch's own norms (d,).
NORMS = {
    "channel": ("weight", "bias"),
    "batch": ("weight", "bias", "running_mean", "running_var"),
    "none": (),
    "instance": ("weight", "bias"),
}
_Sizes = TypeVar("_Sizes", bound=tuple)


class _Entry(NamedTuple):
    shape: tuple[int, ...]


def load_cpc_audio(path: str | Path) -> Pretrained:
    """Load encoder and context of a checkpoint, by its own names; nothing in it is executed.

    A .pt file of the hub (60k_epoch4.pt of Libri-light) or of a training is read by torch; a state
    dict in a safetensors or npz file needs no torch.

    Entries are gEncoder.conv0.weight, gEncoder.batchNorm0.weight, gAR.baseNet.weight_ih_l0 and so
    on; the words `module`, `model` and `_orig_mod` that wrappers add to names are removed. The
    encoder's norm (channel, batch or none), the context (GRU or LSTM) and all widths follow
    from their shapes. Its predictor is kept elsewhere in its checkpoints and is not read: z and c
    are there, predictions are not. Recordings are taken as they are, at 16 kHz.

    Raises:
      UserError: no such file; a .pt without torch; missing, unknown or misshapen entries, all of
        them listed; another norm or context; a model of reversed sound.
    """
    path = Path(path).expanduser()
    check_path(path, (*SUFFIXES, *torch_file.SUFFIXES))
    if path.suffix in torch_file.SUFFIXES:
        arrays, config = torch_file.read_checkpoint(path)
        if config.get("cpc_mode") not in (None, "none"):
            raise UserError(
                f"{path} was trained with cpc_mode {config['cpc_mode']!r}: its contexts do not "
                "come from the past, as those here do"
            )
        entries = _unwrap(arrays, path)  # and what else was trained
        entries = {name: array for name, array in entries.items() if name.startswith(PARTS)}
    else:
        entries = _unwrap(read_weights(path), path)
    weights = {
        name: np.asarray(array, np.float32)
        for name, array in entries.items()
        if not name.endswith("num_batches_tracked")  # a count that only torch's training reads
    }
    own = {name: array for name, array in weights.items() if name.startswith(PARTS)}
    if len(own) > MAX_ENTRIES:
        raise UserError(
            f"{path} has {len(own):,} entries gEncoder... and gAR..., more than {MAX_ENTRIES}: "
            "give a state dict of CPC_audio"
        )
    width, norm = _fit(own, _encoder_choices(own), _encoder_entries)
    gates, layers, context_width, _ = _fit(own, _context_choices(own, width), _context_entries)
    if norm == "instance":
        raise UserError(
            f"the encoder in {path} has an instance norm, whose frames see the whole recording: "
            "channel norm, batch norm and no norm are known"
        )
    if gates not in CONTEXTS:
        raise UserError(f"the context in {path} is a plain RNN: a GRU or an LSTM is known")
    wanted = {
        **_encoder_entries(width, norm),
        **_context_entries(gates, layers, context_width, width),
    }
    check_entries(weights, wanted, str(path))

    encoder = ConvEncoder(width, norm=norm, padding="same")
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


def _unwrap(entries: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """Return the entries by their names without WRAPPERS, wherever these occur.

    Raises:
      UserError: no entry is of this format, or two have one name.
    """
    unwrapped = {
        ".".join(word for word in name.split(".") if word not in WRAPPERS): array
        for name, array in entries.items()
    }
    if len(unwrapped) < len(entries):
        raise UserError(
            f"{path} has one entry with and without a prefix such as module.: save one model alone"
        )
    if not any(name.startswith(PARTS) for name in unwrapped):
        first = ", ".join(map(reprlib.repr, list(entries)[:3])) or "none"
        raise UserError(
            f"{path} has no entry gEncoder... or gAR... (its {len(entries):,} entries are {first}"
            f"{', ...' if len(entries) > 3 else ''}): give a state dict of CPC_audio"
        )
    return unwrapped


def _fit(
    weights: Mapping[str, np.ndarray],
    choices: Iterable[_Sizes],
    entries: Callable[..., dict[str, _Entry]],
) -> _Sizes:
    """The first choice of sizes under which the fewest entries are wrong.

    No entry can be trusted to give a size: the one that is misshapen must not make all others so.
    """

    def misfits(sizes: _Sizes) -> int:
        wanted = entries(*sizes)
        names = wanted.keys() & weights.keys()
        good = sum(wanted[name].shape == weights[name].shape for name in names)
        return len(wanted.keys() | weights.keys()) - good

    return min(choices, key=misfits)


def _encoder_choices(weights: Mapping[str, np.ndarray]) -> list[tuple[int, str]]:
    """(width, norm) by all sizes that occur."""
    shapes = [array.shape for name, array in weights.items() if name.startswith("gEncoder.")]
    widths = sorted({size for shape in shapes for size in shape}) or [256]
    return [(width, norm) for norm in NORMS for width in widths]


def _encoder_entries(width: int, norm: str) -> dict[str, _Entry]:
    entries = {}
    shape = (1, width, 1) if norm == "channel" else (width,)
    for i, kernel in enumerate(ConvEncoder.kernels):
        entries[f"gEncoder.conv{i}.weight"] = _Entry((width, width if i else 1, kernel))
        entries[f"gEncoder.conv{i}.bias"] = _Entry((width,))
        entries |= {f"gEncoder.batchNorm{i}.{kind}": _Entry(shape) for kind in NORMS[norm]}
    return entries


def _context_choices(
    weights: Mapping[str, np.ndarray], width: int
) -> list[tuple[int, int, int, int]]:
    """(gates, layers, context width, width) by all sizes that occur; the likeliest come first."""
    found = {
        name: array.shape
        for name, array in weights.items()
        if name.startswith("gAR.baseNet.") and array.ndim
    }
    layers = {end[1] for name in found if (end := re.search(r"_l(\d+)$", name))}
    squares = [shape[1] for name, shape in found.items() if "weight_hh" in name and shape[1:]]
    near = statistics.mode(squares or [width])
    choices = [
        (gates, num_layers, stacked // gates, width)
        for stacked in sorted({shape[0] for shape in found.values()}) or [3 * 256]
        for gates in (*CONTEXTS, 1)
        for num_layers in range(1, 1 + max(1, len(layers)))
    ]
    return sorted(choices, key=lambda sizes: (sizes[0] == 1, abs(sizes[2] - near)))


def _context_entries(gates: int, layers: int, context_width: int, width: int) -> dict[str, _Entry]:
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
