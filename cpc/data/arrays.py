"""Conversion of user arrays to the model inputs that equivalent files would give."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import soxr
from jaxtyping import Float, Num, UInt8

from cpc.data import augment
from cpc.data.audio_file import MAX_BEYOND, MAX_RATE_HZ, MIN_RATE_HZ, fit_length
from cpc.data.image_file import fit_pixels
from cpc.data.recordings import TARGET_RMS, Levels, gains, measure_levels, to_int16
from cpc.data.series import UNSCALED, measure
from cpc.types import UserError

#: Form of the input: one array, a batch of arrays, or a list of arrays of any lengths.
Form: TypeAlias = Literal["one", "batch", "list"]
#: Allowed numbers of image channels; 4 is RGB with alpha.
IMAGE_CHANNELS = 1, 3, 4
#: Input properties that a model's export must record, by kind of input.
RECORDED = {"audio": ("sample_rate_hz", "rms"), "series": ("standardize",)}


def list_items(x: Any, axes: str) -> tuple[list[np.ndarray], Form]:
    """Split x, which is one array, a batch or a list, into arrays with the given axes."""
    ndim = len(axes.split())
    items = [_as_numbers(item) for item in x] if isinstance(x, list | tuple) else []
    if any(item.ndim for item in items):
        form, wrong = "list", [item for item in items if item.ndim != ndim]
    else:
        whole = _as_numbers(x)
        form = "one" if whole.ndim == ndim else "batch"
        wrong = [whole] if whole.ndim not in (ndim, ndim + 1) else []
        items = [whole] if form == "one" else list(whole) if not wrong else []
    if not all(item.size for item in (*items, *wrong)) or not (items or wrong):
        raise UserError("x has no values: pass at least one array, each with values")
    if wrong:
        raise UserError(
            f"x has shape {wrong[0].shape}, but its axes must be ({', '.join(axes.split())}): "
            "pass one such array, a batch (b, ...), or a list"
        )
    return items, form


def _as_numbers(x: Any) -> np.ndarray:
    try:
        array = np.asarray(x)
    except Exception as error:  # ragged lists, traced arrays, tensors on a GPU
        first = str(error).partition("\n")[0]
        raise UserError(
            f"x cannot be converted to a NumPy array ({first}): pass an array of numbers"
        ) from error
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind not in "fiu":
        raise UserError(f"x has dtype {array.dtype}: pass real numbers, floats or integers")
    return array


def take_sounds(
    x: Any,
    *,
    sample_rate_hz: Any,
    model_rate_hz: int,
    rms: Any,
    stride: int,
    normalize: bool = True,
) -> tuple[list[np.ndarray], Form]:
    """Convert waveforms to a model's sample rate and loudness, as for audio files.

    `model_rate_hz` and `rms` are the rate and loudness in training. If `rms` is None, x keeps its
    loudness. A batch (b, s) with s < min(b, stride) is rejected, since its axes are probably
    (samples, channels).
    """
    items, form = list_items(x, "samples")
    rows, samples = len(items), min(map(len, items))
    if form == "batch" and samples < min(stride, rows):
        raise UserError(
            f"x of shape ({rows}, {samples}) looks like (samples, channels): "
            "average the channels with x.mean(axis=1), or pass x.T as a batch"
        )
    rate = model_rate_hz if sample_rate_hz is None else sample_rate_hz
    is_number = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if not is_number or not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise UserError(f"sample_rate_hz is {rate!r}: pass {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz")
    if normalize:
        return [_normalize(item, float(rate), model_rate_hz, rms) for item in items], form
    if rate != model_rate_hz:
        raise UserError(f"x has {rate} Hz, but normalize=False needs {model_rate_hz}: resample x")
    return _cast_to_float32(items), form


def _to_full_scale(x: Num[np.ndarray, " s"]) -> Float[np.ndarray, " s"]:
    if x.dtype.kind == "f":
        if not np.isfinite(x).all():
            raise UserError("x contains NaN or infinity: remove these samples")
        loudest = float(np.abs(x).max())
        if loudest > MAX_BEYOND:
            raise UserError(
                f"x has floats up to {loudest:,.0f}, but full scale is 1: "
                "divide x by its full scale, such as 32768"
            )
        return x.astype(np.float32)
    if x.dtype == np.uint8:
        return (x.astype(np.float32) - 128) / 128
    if x.dtype.name not in ("int8", "int16", "int32"):
        raise UserError(f"x has dtype {x.dtype}, whose full scale is unknown: pass int16 or floats")
    if x.dtype == np.int32 and x.any() and max(-x.min(), x.max()) <= 2**15:
        raise UserError("x is int32 with values of 16 bits or fewer: pass x.astype(np.int16)")
    return (x / 2 ** (8 * x.itemsize - 1)).astype(np.float32)


def _normalize(
    x: np.ndarray, rate_hz: float, model_rate_hz: int, rms: Any
) -> Float[np.ndarray, " s"]:
    length = int(len(x) * model_rate_hz // rate_hz)
    if not length:
        raise UserError(
            f"x has {len(x)} samples at {rate_hz:g} Hz, less than one model sample: pass a longer x"
        )
    if x.dtype != np.int16 or rate_hz != model_rate_hz:
        x = _to_full_scale(x)
    if rate_hz != model_rate_hz:
        x = fit_length(soxr.resample(x, rate_hz, model_rate_hz), length)
    return scale_parts([x], measure_levels([x]), rms)


def scale_parts(parts: Sequence[np.ndarray], levels: Levels, rms: Any) -> Float[np.ndarray, " s"]:
    """Convert a recording to float32 at loudness `rms`, after rounding it to 16 bits.

    `parts` are consecutive arrays, int16, or float32 with full scale 1. `levels` are measured over
    all of them. If `rms` is None, the loudness is not changed.
    """
    samples = np.concatenate([to_int16(part, levels) for part in parts]).astype(np.float32) / 32768
    if rms is None:
        return samples
    own = levels.rms / max(levels.peak, 1.0)
    return samples * (gains(np.asarray([own], np.float32))[0] * np.float32(rms / TARGET_RMS))


def _cast_to_float32(items: list[np.ndarray]) -> list[np.ndarray]:
    if not all(item.dtype.kind == "f" and np.isfinite(item).all() for item in items):
        raise UserError("normalize=False requires finite floats: scale x, or set normalize=True")
    return [item.astype(np.float32) for item in items]


def take_series(
    x: Any, *, channels: int, standardize: bool, normalize: bool = True
) -> tuple[list[np.ndarray], Form]:
    """Convert series to model inputs, standardized if the training files were (`standardize`)."""
    if channels == 1:  # a series with one axis is a single channel
        x = _add_axis(x, 1)
    items, form = list_items(x, "time channels")
    for item in items:
        if item.shape[1] != channels:
            fix = "swap the last two axes of x" if len(item) == channels else "select the channels"
            raise UserError(f"x has shape {item.shape}, not (time, {channels} channels): {fix}")
        if not np.isfinite(item).all():
            raise UserError("x contains NaN or infinity: remove or fill these steps")
    if not normalize:
        return _cast_to_float32(items), form
    scales = [measure(item, channels)[0] if standardize else UNSCALED for item in items]
    pairs = zip(items, scales, strict=True)
    return [((item - mean) / scale).astype("f4") for item, (mean, scale) in pairs], form


def take_images(x: Any, *, size: int, channels: int) -> tuple[list[np.ndarray], Form]:
    """Convert images to uint8 arrays (size, size, channels), as for image files."""
    items, form = list_items(_add_axis(x, 2), "y x channels")
    for item in items:
        if item.shape[-1] not in IMAGE_CHANNELS:
            is_first = item.shape[0] in IMAGE_CHANNELS
            fix = "move the channels to the end" if is_first else "add a last axis to grey images"
            raise UserError(f"x has images of shape {item.shape}, not (y, x, 1, 3 or 4): {fix}")
    return [fit_pixels(_to_bytes(item), size=size, channels=channels) for item in items], form


def _add_axis(x: Any, ndim: int) -> Any:
    """Append an axis of length 1 to an array with `ndim` axes, or to each array of a list."""
    if isinstance(x, list | tuple):
        return [_add_axis(item, ndim) for item in x]
    return x[..., None] if getattr(x, "ndim", None) == ndim else x


def _to_bytes(pixels: np.ndarray) -> UInt8[np.ndarray, "y x ch"]:
    """Convert pixels to uint8, scaling floats by 255 and keeping the upper 8 bits of uint16."""
    if pixels.dtype == np.uint16:
        return (pixels >> 8).astype(np.uint8)
    limit = 1 if pixels.dtype.kind == "f" else 255
    if not (pixels.min() >= 0 and pixels.max() <= limit):  # True for NaN
        raise UserError(
            f"x has {pixels.dtype} values from {pixels.min():.4g} to {pixels.max():.4g}, but "
            "images must be uint8, or floats in 0..1: scale x"
        )
    return np.round(pixels * np.float32(255 / limit)).astype(np.uint8)


def check_recorded(given: Mapping[str, Any]) -> None:
    """Raise UserError if a model's export lacks an input property that `take` needs."""
    kind = given["kind"]
    missing_facts = [name for name in RECORDED.get(kind, ()) if name not in given]
    if missing_facts or (kind == "series" and len(given["shape"]) != 2):
        missing = (missing_facts or ["channels"])[0]
        raise UserError(f"the model of {kind} does not record its {missing}: export it again")


def take(
    given: Mapping[str, Any],
    about: Mapping[str, Any],
    stride: int,
    x: Any,
    sample_rate_hz: int | float | None,
    normalize: bool,
) -> tuple[Any, Form | None, Callable[[Any], Any] | None]:
    """Convert an array or a list x, as described by `cpc.models.Embedder`, to inputs of a model.

    `given` describes the model's input, `about` contains its run's config, and `stride` is the
    number of samples per frame. The result is (inputs, form, preprocess). The inputs are a list of
    items or, if form is None, one batch. For images, preprocess prepares items on the device.
    """
    kind = given["kind"]
    if sample_rate_hz is not None and kind != "audio":
        raise UserError(f"sample_rate_hz is for audio, not for a model of {kind}: pass None")
    if kind == "audio":
        rate_hz, rms = given["sample_rate_hz"], given["rms"]
        options: Any = {"sample_rate_hz": sample_rate_hz, "model_rate_hz": rate_hz, "rms": rms}
        return *take_sounds(x, **options, stride=stride, normalize=normalize), None
    if kind == "series":
        options = {"channels": given["shape"][1], "standardize": given["standardize"]}
        return *take_series(x, **options, normalize=normalize), None
    if kind == "image" and getattr(x, "ndim", 0) != len(given["shape"]) + 1:
        preprocess = _make_patcher(about)
        if not normalize:
            raise UserError("normalize=False needs patches (b, i, j, y, x, c): set normalize=True")
        data = about["config"]["data"]
        return *take_images(x, size=data["size"], channels=data["channels"]), preprocess
    return _check_batch(x, given), None, None


def _make_patcher(about: Mapping[str, Any]) -> Callable[[Any], Any]:
    try:
        model, options = (about["config"][name] for name in ("model", "augment"))
        return functools.partial(
            augment.cut_for_evaluation,
            crop=options["crop"],
            grey=options["grey"],
            patch=model["patch"],
            stride=model["stride"],
        )
    except (KeyError, TypeError):
        raise UserError(
            "the model does not record how images are cut into patches: export it again"
        ) from None


def _check_batch(x: Any, given: Mapping[str, Any]) -> Any:
    """Return a batch of word ids or patches unchanged, after checking its shape and type."""
    x, shape, is_text = np.asarray(x), tuple(given["shape"]), given["kind"] == "text"
    if x.ndim != len(shape) + 1 or (x.shape[1:] != shape and not is_text):
        raise UserError(f"x has shape {x.shape}, but the model takes batches of shape {shape}")
    if x.dtype.kind != ("i" if is_text else "f"):
        wanted = "ids of words, int32" if is_text else "floats"
        raise UserError(f"x has dtype {x.dtype}, but the model takes {wanted}: convert x")
    if is_text and "words" in given and x.max(initial=-1) > given["words"].count(" "):
        raise UserError(
            f"x has the id {x.max()}, but the model knows {given['words'].count(' ') + 1:,} words: "
            "encode x with the model's words"
        )
    return x
