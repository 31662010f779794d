"""A trained model as a function from the arrays of users to features."""

import functools
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cpc.models.features import Layers
from cpc.models.layers import layer_depths
from cpc.models.load import Pretrained, load_pretrained
from cpc.types import ArrayLike, UserError

#: Images that are embedded at a time.
BATCH_IMAGES = 64
#: Facts about the input that models of a kind record.
REQUIRED = {"audio": ("sample_rate_hz", "rms"), "series": ("standardize",)}


class Embedder:
    """A trained model as a function: `embed(x)` returns (z, c), `embed.layers(x)` all layers.

    x is brought to the form that the model was trained on, so that the features are those of
    `cpc embed` for files of the same content, to 1e-5. By the kind of data, x is:

        audio    (s,), (b, s), or a list of (s,) of any lengths: floats in -1..1, or integers,
                 scaled by their type. Pass `sample_rate_hz` unless x has the model's rate; loudness
                 is normalized. Frames: max(1, s // stride).
        series   (t, channels), (b, t, channels), or a list of (t, channels); standardized if the
                 training files were.
        image    (h, w), (h, w, c), (b, h, w, c), or a list of these, of any size: uint8, or floats
                 in 0..1. Or patches (b, i, j, y, x, c) as the model takes them.
        text     ids of words (b, sentences, words), -1 for padding.

    Features of a single array have no batch axis; those of a list are lists. Signals are continued
    at their end by their mirror image, which frames see if the encoder looks ahead.
    `normalize=False` is for x that has the model's rate and loudness, or scale, already; the bare
    network is `make_model(pretrained.module).embed(pretrained.variables, x)`.
    """

    def __init__(self, pretrained: Pretrained):
        self._module, self._variables, self._input, self._about = pretrained
        kind, axes = self._input["kind"], len(self._input["shape"])
        lacks = [name for name in REQUIRED.get(kind, ()) if name not in self._input]
        if lacks or (kind == "series" and axes != 2):
            raise UserError(
                f"the model of {kind} does not record its {(lacks or ['channels'])[0]}: "
                "export it again"
            )
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
        """Return latents z and contexts c, float32 arrays of numpy, or lists of these.

        `sample_rate_hz` is by default the model's; with `normalize` False, rate, loudness and scale
        of x stay as they are.
        """
        found = self._embed(("z", "c"), x, sample_rate_hz, normalize)
        return found["z"], found["c"]

    def layers(
        self, x: Any, *, sample_rate_hz: int | float | None = None, normalize: bool = True
    ) -> dict[str, Any]:
        """Return all layers by name: z1, z2, ... of the encoder, and c1, ... of the context.

        z is the same as the last layer of the encoder, and c as the last one of the context. x and
        the options are those of a call.
        """
        depths = layer_depths(self._module)
        names = tuple(name for name in depths if name not in ("z", "c"))
        found = self._embed(names, x, sample_rate_hz, normalize)
        return found | {part: found[f"{part}{depths[part]}"] for part in ("z", "c")}

    def _embed(
        self, names: tuple[str, ...], x: Any, sample_rate_hz: int | float | None, normalize: bool
    ) -> dict[str, Any]:
        from cpc.data import arrays  # imported late: it brings the libraries that read files

        given, kind = self._input, self._input["kind"]
        if sample_rate_hz is not None and kind != "audio":
            raise UserError(f"sample_rate_hz is for sound, and the model is of {kind}: omit it")
        is_image = kind == "image" and getattr(x, "ndim", 0) != len(given["shape"]) + 1
        layers = self._layers(names, is_image)
        if kind == "audio":
            items, form = arrays.take_sounds(
                x,
                sample_rate_hz=sample_rate_hz,
                model_rate_hz=given["sample_rate_hz"],
                rms=given["rms"],
                stride=layers.stride,
                normalize=normalize,
            )
            found = layers.embed_signals(items)
        elif kind == "series":
            items, form = arrays.take_series(
                x, channels=given["shape"][1], standardize=given["standardize"], normalize=normalize
            )
            found = layers.embed_signals(items)
        elif is_image:
            if not normalize:
                raise UserError("normalize=False takes patches (b, i, j, y, x, c): omit it")
            data = self._about["config"]["data"]
            items, form = arrays.take_images(x, size=data["size"], channels=data["channels"])
            parts = (items[i : i + BATCH_IMAGES] for i in range(0, len(items), BATCH_IMAGES))
            found = [row for part in parts for row in layers.embed_rows(part)]
        else:
            return layers.embed_batch(_check_batch(x, given))
        if form == "one":
            return found[0]
        by_layer = {name: [row[name] for row in found] for name in names}
        return by_layer if form == "list" else {n: np.stack(by_layer[n]) for n in names}

    def _layers(self, names: tuple[str, ...], is_image: bool) -> Layers:
        """Return the compiled layers, with images cut into patches as the run's config says."""
        if (names, is_image) in self._compiled:
            return self._compiled[names, is_image]
        prepare = None
        if is_image:
            from cpc.data import augment

            try:
                model, options = (self._about["config"][name] for name in ("model", "augment"))
                prepare = functools.partial(
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
        made = Layers(self._module, self._variables, names, prepare)
        return self._compiled.setdefault((names, is_image), made)


def _check_batch(x: Any, given: dict[str, Any]) -> Any:
    """Return a batch that a model takes as it is: words of text, or patches."""
    x, shape, is_text = np.asarray(x), tuple(given["shape"]), given["kind"] == "text"
    if x.ndim != len(shape) + 1 or (x.shape[1:] != shape and not is_text):
        raise UserError(f"x has shape {x.shape}, but the model takes batches of {shape}")
    if x.dtype.kind != ("i" if is_text else "f"):
        wanted = "ids of words, int32" if is_text else "floats"
        raise UserError(f"x has dtype {x.dtype}, but the model takes {wanted}: convert it")
    if is_text and "words" in given and x.max(initial=-1) > given["words"].count(" "):
        raise UserError(
            f"x has the id {x.max()}, but the model knows {given['words'].count(' ') + 1:,} words: "
            "encode x with the model's words"
        )
    return x


def load(folder: str | Path) -> Embedder:
    """Return the function embed(x) -> (z, c) of a run, or of a folder that `save` wrote.

    x is sound, series, images or text as files contain them: see `Embedder`. Of a waveform at
    another rate than the model's:

        embed = models.load("runs/voices")
        samples, rate = soundfile.read("a.wav", dtype="int16")  # (s,)
        z, c = embed(samples, sample_rate_hz=rate)  # both (t, width)

    A run is exported when it has reached its last step, and by `cpc export`.
    """
    return Embedder(load_pretrained(folder))


def embed_with(pretrained: Pretrained) -> Embedder:
    """Return the function embed(x) -> (z, c) of a model in memory, as `load` does."""
    return Embedder(pretrained)
