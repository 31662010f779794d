"""The feature "layers": every layer at the rate of z, whose weighted sum a linear probe learns."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from cpc import evaluate
from cpc.models import Layers, Model, end_at, layer_depths
from experiments.training.probes import ProbeContext
from experiments.training.sequences import make_embed_long

LAYERS = "layers"
#: Tasks with a label per frame, by which the weights are learned.
WEIGHTED_TASKS = ("phones", "speakers")


def layer_names(model: Model, variables: Any) -> tuple[str, ...]:
    """Return the layers at the rate of z, from the first to c; the last ones are z and c."""
    depths = layer_depths(model.module)
    names = [name for name in depths if name in ("z", "c") or depths[name] < depths[name[0]]]
    strides = Layers(model.module, variables, names).strides
    return tuple(name for name in names if strides[name] == model.module.encoder.stride)


def embed_layers(
    model: Model, variables: Any, waveforms: Sequence[np.ndarray], delay: int
) -> list[list[np.ndarray]]:
    """Return the layers of each utterance; those of c are read `delay` frames later."""
    names, encoder = layer_names(model, variables), model.module.encoder
    layers = Layers(model.module, variables, names)

    def embed(x: np.ndarray) -> np.ndarray:
        made = layers.embed_batch(x)
        num_frames = min(one.shape[1] for one in made.values())
        return np.concatenate([made[name][:, :num_frames] for name in names], axis=-1)

    ends = np.cumsum([layer_width(model, variables, name) for name in names])[:-1]
    found = evaluate.embed_utterances(
        embed,
        waveforms,
        encoder.stride,
        ahead=encoder.frames_around[1],
        embed_long=make_embed_long(model, variables, names),
    )
    return [
        [
            delayed(one, delay if name[0] == "c" else 0)
            for name, one in zip(names, np.split(frames, ends, axis=1), strict=True)
        ]
        for frames in found
    ]


def layer_width(model: Model, variables: Any, name: str) -> int:
    """Return the width of a layer."""
    module, own = end_at(model.module, variables, name)
    method = "embed" if name[0] == "c" else "encode"
    apply = functools.partial(module.apply, method=method)
    x = np.zeros((1, module.encoder.receptive_field), np.float32)
    made: Any = jax.eval_shape(apply, own, x)
    return (made[1] if name[0] == "c" else made).shape[-1]


def delayed(frames: np.ndarray, by: int) -> np.ndarray:
    """Return for each frame the one that comes so many later, the last one at the end.

    >>> delayed(np.array([[1], [2], [3]]), 2).ravel()
    array([3, 3, 3])
    """
    return frames[np.minimum(np.arange(len(frames)) + by, len(frames) - 1)] if by else frames


def weight_layers(
    context: ProbeContext,
    train: Sequence[Sequence[np.ndarray]],
    test: Sequence[Sequence[np.ndarray]],
    labels: Sequence[np.ndarray],
    *,
    num_classes: int,
) -> tuple[list[np.ndarray], list[np.ndarray], str]:
    """Return training and test utterances as weighted sums of their layers, and the weights."""
    joined = [np.concatenate(layer) for layer in zip(*train, strict=True)]
    fitted = evaluate.fit_layer_sum(
        joined, np.concatenate(labels), num_classes=num_classes, seed=context.config.seed
    )
    names = layer_names(context.model, context.variables)
    weights = ", ".join(
        f"{name} {weight:.2f}" for name, weight in zip(names, fitted.weights, strict=True)
    )
    note = f"; weights {weights}" + ("" if fitted.converged else " not converged")
    return *([fitted.apply(layers) for layers in part] for part in (train, test)), note
