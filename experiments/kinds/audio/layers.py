"""The feature "layers": layers at the rate of z, summed with weights that a linear probe learns."""

from collections.abc import Sequence

import jax
import numpy as np

from cpc.data import Recordings, read_all
from cpc.evaluate import fit_layer_weights
from cpc.models import Layers, Model, layer_depths
from experiments.training.probes import ProbeContext

#: The name of the feature, whose weights need a label per frame.
LAYERS = "layers"


def delayed(frames: np.ndarray, by: int) -> np.ndarray:
    """Return frames shifted `by` frames to earlier places, with the last frame repeated.

    >>> delayed(np.array([[1], [2], [3]]), 2).ravel()
    array([3, 3, 3])
    """
    return frames[np.minimum(np.arange(len(frames)) + by, len(frames) - 1)] if by else frames


def open_layers(model: Model, variables: dict) -> Layers:
    """Return the layers at the rate of z; the last layer of z or c has one name."""
    depths = layer_depths(model.module)
    names = [name for name in depths if name in ("z", "c") or depths[name] < depths[name[0]]]
    strides = Layers(model.module, variables, names).strides
    names = [name for name in names if strides[name] == strides["z"]]
    return Layers(model.module, variables, names)


def embed_layers(layers: Layers, recordings: Recordings, delay: int) -> list[np.ndarray]:
    """Return the layers (t, l, d) of each utterance, narrow ones padded with zeros.

    Layers of c are read `delay` frames later.
    """
    found = []
    for made in layers.embed_signals([read_all(recordings, i) for i in range(len(recordings))]):
        width = max(x.shape[1] for x in made.values())
        own = [delayed(x, delay * (name[0] == "c")) for name, x in made.items()]
        padded = [np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in own]
        found.append(np.stack(padded, axis=1))
    return found


def sum_layers(
    context: ProbeContext,
    parts: tuple[Recordings, Recordings],
    labels: Sequence[np.ndarray],
    num_classes: int,
) -> tuple[list[list[np.ndarray]], str]:
    """Return the weighted sums of training and test utterances, and the weights as text."""
    config = context.config
    layers = open_layers(context.model, jax.device_get(context.variables))
    made = [embed_layers(layers, part, config.probe.delay) for part in parts]
    weights, factors = fit_layer_weights(
        np.concatenate(made[0]), np.concatenate(labels), num_classes=num_classes, seed=config.seed
    )
    text = ", weights " + " ".join(map("{} {:.2f}".format, layers.names, weights))
    return [[np.einsum("tld,ld->td", x, factors) for x in part] for part in made], text
