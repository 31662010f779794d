"""The network that an audio config asks for, and where its latents come from."""

from typing import Any

import jax.numpy as jnp

from cpc.models import AUDIO_ENCODERS, CPC, PREDICTORS, Model, make_model, module_ends
from cpc.negatives import outside_overlap
from cpc.types import Batch, Rule, SoundPosition
from experiments.command.config import Config
from experiments.objective import Direction
from experiments.sequences import CONTEXTS, positions


def build_model(config: Config) -> Model:
    """Return encoder, context and predictor by the config's words."""
    options, encoder = config.model, build_encoder(config)
    return make_model(
        CPC(
            encoder,
            CONTEXTS[options.context](
                options.context_width, options.context_layers, dtype=encoder.dtype
            ),
            PREDICTORS[options.predictor](options.num_offsets, options.width, dtype=encoder.dtype),
            directions=tuple(options.directions),
            cuts=module_ends(encoder.num_layers, options.modules),
        )
    )


def build_encoder(config: Config) -> Any:
    """Return the encoder by the config's words, with its geometry."""
    options = config.model
    return AUDIO_ENCODERS[options.encoder](
        options.width,
        norm=options.norm,
        padding=options.padding,
        dtype=jnp.dtype(options.dtype),
        remat=options.remat,
    )


def num_latents(config: Config) -> int:
    """Return the number of latents of a training window."""
    return build_encoder(config).num_latents(config.data.window_samples)


def loss_sizes(config: Config) -> tuple[int, int, int]:
    """Return the latents of a window, their width, and the offsets of all branches together."""
    num_branches = len(config.model.directions) * config.model.modules
    return num_latents(config), config.model.width, config.model.num_offsets * num_branches


def name_branches(module: CPC) -> tuple[str, ...]:
    """Return what the branches of a model are called: directions, modules, or both."""
    if not module.cuts:
        return tuple(module.directions)
    both = module.is_bidirectional
    return tuple(f"module {n}" + f" {one}" * both for n, one in module.branches)


def split_directions(module: CPC, outputs: Any, batch: Batch) -> list[Direction]:
    """Return outputs of each branch, where their latents come from, and which of them exist.

    A backward branch counts time, and the line of recordings, from their ends. A module of a
    shorter stride sees the line stretched by as much: a latent is always as long.
    """
    outputs = outputs if len(module.branches) > 1 else (outputs,)
    stride, directions = module.encoder.stride, []
    for (number, direction), one in zip(module.branches, outputs, strict=True):
        own = module.encoder
        if number <= len(module.cuts):
            own = own.upto(module.cuts[number - 1], {})[0]
        length = one.z.shape[1]
        located = positions(batch, batch["speaker"], length)
        start, exists = batch["sample"][:, None] * (stride // own.stride), None
        count: Any = length
        if "num_samples" in batch:
            count = jnp.minimum(own.num_existing(batch["num_samples"]), length)[:, None]
            exists = located.time < count
        if direction == "backward":
            start = -(start + stride * count)
        sample = start + stride * located.time
        directions.append(Direction(one, SoundPosition(*located, sample=sample), exists))
    return directions


def build_apart(config: Config) -> Rule | None:
    """Return the rule by which overlapping windows are no negatives of each other; None without."""
    if config.negatives.overlap:
        return None
    return outside_overlap(config.data.window_samples, build_encoder(config).stride)
