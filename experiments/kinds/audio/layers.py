"""The feature "layers": a weighted sum of layers at the rate of z, with learned weights."""

import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from cpc.data import Recordings, read_all
from cpc.evaluate import fit_layer_weights
from cpc.models import Layers, Model, layer_depths
from experiments.training.probes import ProbeContext

LAYERS = "layers"
#: Number of utterances embedded at a time, and maximum number of frames that weights are fitted to.
NUM_TOGETHER, MAX_FRAMES = 256, 2**15


def delayed(frames: np.ndarray, by: int) -> np.ndarray:
    """Shift frames `by` steps earlier, repeating the last frame at the end.

    >>> delayed(np.array([[1], [2], [3]]), 2).ravel()
    array([3, 3, 3])
    """
    return frames[np.minimum(np.arange(len(frames)) + by, len(frames) - 1)] if by else frames


def open_layers(model: Model, variables: dict) -> Layers:
    """Return all layers with the same frame rate as z, each under a single name."""
    depths = layer_depths(model.module)
    names = [name for name in depths if name in ("z", "c") or depths[name] < depths[name[0]]]
    strides = Layers(model.module, variables, names).strides
    names = [name for name in names if strides[name] == strides["z"]]
    return Layers(model.module, variables, names)


def embed_layers(layers: Layers, recordings: Recordings, delay: int) -> Iterator[np.ndarray]:
    """Yield an array (t, l, d) for each utterance, with t frames and l layers.

    Narrow layers are padded with zeros to the largest width d. Layers of the context network are
    shifted `delay` frames earlier.
    """
    numbers = range(len(recordings))
    for start in numbers[::NUM_TOGETHER]:
        some = [read_all(recordings, i) for i in numbers[start : start + NUM_TOGETHER]]
        for made in layers.embed_signals(some):
            own = [delayed(x, delay * (name[0] == "c")) for name, x in made.items()]
            width = max(x.shape[1] for x in own)
            yield np.stack([np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in own], axis=1)


def sum_layers(
    context: ProbeContext,
    parts: tuple[Recordings, Recordings],
    labels: Sequence[np.ndarray],
    num_classes: int,
) -> tuple[list[list[np.ndarray]], str]:
    """Return weighted layer sums for training and test utterances, and the weights as text."""
    config = context.config
    layers = open_layers(context.model, jax.device_get(context.variables))
    embed = functools.partial(embed_layers, layers, delay=config.probe.delay)
    rng, share = np.random.default_rng(config.seed), MAX_FRAMES / sum(map(len, labels))
    drawn = [rng.random(len(own)) < share for own in labels]
    frames, known = (
        np.concatenate([x[i] for x, i in zip(all_frames, drawn, strict=True)])
        for all_frames in (embed(parts[0]), labels)
    )
    weights, factors = fit_layer_weights(frames, known, num_classes=num_classes, seed=config.seed)
    text = ", weights " + " ".join(map("{} {:.2f}".format, layers.names, weights))
    return [[np.einsum("tld,ld->td", x, factors) for x in embed(part)] for part in parts], text
