"""The network that an audio config asks for, and where its latents come from."""

from typing import Any

import jax.numpy as jnp

from cpc.models import (
    AUDIO_ENCODERS,
    CPC,
    PREDICTORS,
    Model,
    QuantizedEncoder,
    SegmentalCPC,
    boundaries,
    make_model,
    segment_means,
)
from cpc.negatives import outside_overlap
from cpc.types import Batch, CPCOutputs, Rule, SoundPosition, UserError
from experiments.command.config import Config
from experiments.objective import Direction
from experiments.sequences import CONTEXTS, positions


def build_model(config: Config) -> Model:
    """Return encoder, context and predictor by the config's words."""
    options, encoder = config.model, build_encoder(config)
    dtype, width = encoder.dtype, latent_width(config)
    context = CONTEXTS[options.context](options.context_width, options.context_layers, dtype=dtype)
    predictor = PREDICTORS[options.predictor](options.num_offsets, width, dtype=dtype)
    if options.segment_threshold:
        return make_model(
            SegmentalCPC(encoder, context, predictor, width, options.segment_threshold, dtype)
        )
    return make_model(CPC(encoder, context, predictor))


def build_encoder(config: Config) -> Any:
    """Return the encoder by the config's words, with its geometry."""
    options = config.model
    encoder = AUDIO_ENCODERS[options.encoder](
        options.width,
        norm=options.norm,
        padding=options.padding,
        dtype=jnp.dtype(options.dtype),
        remat=options.remat,
    )
    if not options.num_codes:
        return encoder
    return QuantizedEncoder(
        encoder,
        options.num_codes,
        options.code_width,
        decay=options.code_decay,
        commitment=options.commitment,
        restart=options.restart_codes,
        dtype=encoder.dtype,
    )


def latent_width(config: Config) -> int:
    """Return the width of z: of the encoder, or of its codes."""
    return config.model.code_width if config.model.num_codes else config.model.width


def num_latents(config: Config) -> int:
    """Return the number of latents of a training window."""
    return build_encoder(config).num_latents(config.data.window_samples)


def loss_sizes(config: Config) -> tuple[int, int, int]:
    """Return the latents of a window, their width, and the offsets of all directions together."""
    number = config.model.num_offsets * len(name_directions(config))
    return num_latents(config), latent_width(config), number


def choose_offsets(config: Config) -> tuple[int, ...]:
    """Return the offset of each prediction; aligned ones have that of their last even share.

    What the strict bound asks of a prediction is a fixed offset. Where K predictions are aligned to
    F latents, it is where the k-th ends if each takes as many.

    >>> from configs import audio
    >>> config = audio.get_config()
    >>> config.model.num_offsets, config.loss.align_to = 3, 8
    >>> choose_offsets(config)
    (3, 6, 8)
    """
    num, num_frames = config.model.num_offsets, config.loss.align_to or config.model.num_offsets
    return tuple(-(-k * num_frames // num) for k in range(1, num + 1))


def check_model(config: Config) -> None:
    """Check that the model's keys go together."""
    if config.model.segment_threshold and config.model.num_offsets != 1:
        raise UserError(
            f"model.num_offsets is {config.model.num_offsets}: with model.segment_threshold frames "
            "and segments predict the next one, so set model.num_offsets to 1"
        )


def name_directions(config: Config) -> tuple[str, ...]:
    """Return the names of what is predicted, in the order of `split_directions`."""
    return ("frames", "segments") if config.model.segment_threshold else ("forward",)


def split_directions(config: Config, outputs: Any, batch: Batch) -> list[Direction]:
    """Return outputs, where their latents come from, and which of them exist, of each direction."""
    encoder, threshold = build_encoder(config), config.model.segment_threshold
    frames, *segments = outputs if threshold else (outputs,)
    exists = None
    if "num_samples" in batch:
        time = jnp.arange(frames.z.shape[1])
        exists = time < encoder.num_existing(batch["num_samples"])[:, None]
    found = [(frames, exists)]
    for one in segments:
        begins = boundaries(frames.z, threshold, exists)
        found.append((one, segment_means(frames.z, begins, exists)[1]))
    return [Direction(one, locate(encoder, one, batch), exists) for one, exists in found]


def locate(encoder: Any, outputs: CPCOutputs, batch: Batch) -> SoundPosition:
    """Return where latents come from; segments as if they were frames, which are no shorter."""
    located = positions(batch, batch["speaker"], outputs.z.shape[1])
    sample = batch["sample"][:, None] + encoder.stride * located.time
    return SoundPosition(*located, sample=sample)


def build_apart(config: Config) -> Rule | None:
    """Return the rule by which overlapping windows are no negatives of each other; None without."""
    if config.negatives.overlap:
        return None
    return outside_overlap(config.data.window_samples, build_encoder(config).stride)
