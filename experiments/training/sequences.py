"""What kinds of data have in common whose latents follow each other in time."""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from cpc import models
from cpc.files import write_sealed
from cpc.types import Batch, SoundPosition
from experiments.command.config import Config

CONTEXTS = {
    "gru": models.GRU,
    "lstm": models.LSTM,
    "conv": models.CausalConv,
    "conv_undilated": functools.partial(models.CausalConv, dilated=False),
    "transformer": models.CausalTransformer,
}


def make_cpc(options: Config, encoder: Any) -> models.Model:
    """Return an encoder with the context and linear predictions that a model section asks for."""
    context = CONTEXTS[options.context](
        options.context_width, options.context_layers, dtype=encoder.dtype
    )
    predictor = models.LinearPredictor(options.num_offsets, options.width, dtype=encoder.dtype)
    return models.make_model(models.CPC(encoder, context, predictor))


def positions(batch: Batch, group: Any, begin: Any, first: Any, last: Any) -> SoundPosition:
    """Return where the latents (b, t) of windows come from, which begin at samples (b, 1).

    `first` and `last` are the first sample of each latent in its window, and the one after it.
    """
    return SoundPosition(
        sequence=batch["sequence"][:, None],
        time=jnp.arange(first.shape[1])[None],
        lane=jnp.zeros((1, 1), jnp.int32),
        group=group[:, None],
        sample=begin + first,
        end=begin + last,
        window=begin,
    )


def write_truth(workdir: pathlib.Path, nats: Mapping[int, float]) -> None:
    """Write the information that a synthetic source has at each offset, for the page."""
    truth = {"offsets": [*nats], "mutual_information": [*nats.values()]}
    write_sealed(workdir / "truth.json", truth)
