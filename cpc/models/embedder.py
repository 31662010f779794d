"""Trained models as functions from users' arrays to features."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cpc.models.features import Layers
from cpc.models.layers import layer_depths
from cpc.models.load import Pretrained, load_pretrained
from cpc.types import ArrayLike, PyTree

#: Number of arrays of one shape that are embedded at once.
BATCH_ROWS = 64


class Embedder:
    """A trained model as a function: `embed(x)` returns (z, c), `embed.layers(x)` all layers.

    x is converted to the form that the model was trained on, so the features equal those of
    `cpc embed` for files with the same content, to 1e-5. Depending on the kind of data, x is:

        audio    (s,), (b, s), or a list of (s,) of any lengths: floats in -1..1, or integers,
                 scaled by their type. Pass `sample_rate_hz` unless x has the model's rate; loudness
                 is normalized. Frames: max(1, s // stride).
        series   (t, channels), (b, t, channels), or a list of (t, channels); standardized if the
                 training files were.
        image    (h, w), (h, w, c), (b, h, w, c), or a list of these, of any size: uint8, or floats
                 in 0..1. Or patches (b, i, j, y, x, c) in the form of the model's input.
        text     word ids (b, sentences, words), -1 for padding.

    A single array gives features without a batch axis, and a list gives lists. The end of a signal
    is padded with its mirror image, which affects frames only if the encoder looks ahead. The
    network alone is `make_model(pretrained.module).embed(pretrained.variables, x)`.
    """

    def __init__(self, module: Any, variables: PyTree, take: Callable[..., tuple[Any, Any, Any]]):
        self._module, self._variables, self._take = module, variables, take
        self._compiled: dict[tuple[tuple[str, ...], bool], Layers] = {}

    @overload
    def __call__(
        self, x: list[Any], *, sample_rate_hz: int | float | None = None, normalize: bool = True
    ) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]: ...

    @overload
    def __call__(
        self, x: ArrayLike, *, sample_rate_hz: int | float | None = None, normalize: bool = True
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...

    def __call__(
        self, x: Any, *, sample_rate_hz: int | float | None = None, normalize: bool = True
    ) -> tuple[Any, Any]:
        """Return latents z and contexts c, as float32 NumPy arrays or lists of these.

        `sample_rate_hz` defaults to the model's rate. `normalize=False` keeps rate, loudness and
        scale of x.
        """
        found = self._embed(("z", "c"), x, sample_rate_hz, normalize)
        return found["z"], found["c"]

    def layers(
        self, x: Any, *, sample_rate_hz: int | float | None = None, normalize: bool = True
    ) -> dict[str, Any]:
        """Return the outputs of all layers by name: z1, ..., c1, ..., and the last ones z, c."""
        depths = layer_depths(self._module)
        names = tuple(name for name in depths if name not in ("z", "c"))
        found = self._embed(names, x, sample_rate_hz, normalize)
        return found | {part: found[f"{part}{depths[part]}"] for part in ("z", "c")}

    def _embed(
        self, names: tuple[str, ...], x: Any, sample_rate_hz: int | float | None, normalize: bool
    ) -> dict[str, Any]:
        items, form, preprocess = self._take(x, sample_rate_hz, normalize)
        key = names, preprocess is None
        if key not in self._compiled:
            self._compiled[key] = Layers(self._module, self._variables, names, preprocess)
        layers = self._compiled[key]
        if form is None:
            return layers.embed_batch(items)
        if preprocess is None:
            found = layers.embed_signals(items)
        else:
            parts = (items[i : i + BATCH_ROWS] for i in range(0, len(items), BATCH_ROWS))
            found = [row for part in parts for row in layers.embed_rows(part)]
        if form == "one":
            return found[0]
        by_layer = {name: [row[name] for row in found] for name in names}
        return by_layer if form == "list" else {n: np.stack(by_layer[n]) for n in names}


def load(folder: str | Path) -> Embedder:
    """Load a run, or a folder that `save` wrote, as a function embed(x) -> (z, c).

    x is audio, series, images or text as files contain them, see `Embedder`. For a waveform at
    another rate than the model's:

        embed = models.load("runs/voices")
        samples, rate = soundfile.read("a.wav", dtype="int16")  # (s,)
        z, c = embed(samples, sample_rate_hz=rate)  # both (t, width)

    Runs are exported when they reach their last step, and by `cpc export`.
    """
    return embed_with(load_pretrained(folder))


def embed_with(pretrained: Pretrained) -> Embedder:
    """Return the function embed(x) -> (z, c) of a model in memory, as `load` does for files."""
    from cpc.data import arrays  # a late import, as it loads libraries that read files

    module, variables, given, about = pretrained
    arrays.check_recorded(given)
    stride = getattr(getattr(module, "encoder", None), "stride", 1)
    return Embedder(module, variables, functools.partial(arrays.take, given, about, stride))
