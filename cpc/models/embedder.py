"""Trained models as functions that map arrays of signals, images or words to features."""

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
    """A trained model as a function: `embed(x)` returns (z, c), and `embed.layers(x)` all layers.

    x is preprocessed like the training data, so features equal those of `cpc embed` for files with
    the same content, up to 1e-5. The form of x depends on the kind of data:

        audio    An array (s,) or (b, s), or a list of arrays (s,) of any lengths. Values are floats
                 in -1..1, or integers, scaled by their type. Loudness is normalized. Pass
                 `sample_rate_hz` if it is not the model's. There are max(1, s // stride) frames.
        series   An array (t, channels) or (b, t, channels), or a list of arrays (t, channels). They
                 are standardized if the training files were standardized.
        image    An array (h, w), (h, w, c) or (b, h, w, c), or a list of images of any size. Values
                 are uint8, or floats in 0..1. Alternatively, patches (b, i, j, y, x, c).
        text     An array of word ids (b, sentences, words), with -1 for padding.

    The features of a single item have no batch axis, and those of a list are lists. The end of a
    signal is padded with its mirror image, which only affects frames if the encoder looks ahead. To
    apply only the network, use `make_model(pretrained.module).embed(pretrained.variables, x)`.
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
        """Return latents z and contexts c, as float32 NumPy arrays or lists of such arrays.

        `sample_rate_hz` defaults to the model's rate. If `normalize` is false, x keeps its rate,
        loudness and scale.
        """
        found = self._embed(("z", "c"), x, sample_rate_hz, normalize)
        return found["z"], found["c"]

    def layers(
        self, x: Any, *, sample_rate_hz: int | float | None = None, normalize: bool = True
    ) -> dict[str, Any]:
        """Return the outputs of all layers by name: z1, ..., c1, ..., and z and c for the last."""
        depths = layer_depths(self._module)
        names = tuple(name for name in depths if name not in ("z", "c"))
        found = self._embed(names, x, sample_rate_hz, normalize)
        return found | {part: found[f"{part}{depths[part]}"] for part in ("z", "c")}

    def _embed(self, names, x, sample_rate_hz, normalize) -> dict[str, Any]:
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

    x is audio, series, images or text with the values that files contain; see `Embedder`. A
    waveform can have another rate than the model:

        embed = models.load("runs/voices")
        samples, rate = soundfile.read("a.wav", dtype="int16")  # (s,)
        z, c = embed(samples, sample_rate_hz=rate)  # both (t, width)

    A run must have been exported, which happens at its last step or by `cpc export`.
    """
    return embed_with(load_pretrained(folder))


def embed_with(pretrained: Pretrained) -> Embedder:
    """Return a model in memory as a function embed(x) -> (z, c), as `load` does for files."""
    from cpc.data import arrays  # imported late, because it loads libraries that read files

    module, variables, given, about = pretrained
    arrays.check_recorded(given)
    stride = getattr(getattr(module, "encoder", None), "stride", 1)
    return Embedder(module, variables, functools.partial(arrays.take, given, about, stride))
