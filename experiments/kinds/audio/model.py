"""The network that an audio config asks for, and where its latents come from."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from cpc.models import (
    AUDIO_ENCODERS,
    CPC,
    PREDICTORS,
    Model,
    QuantizedEncoder,
    SegmentalCPC,
    boundaries,
    make_model,
    module_ends,
    segment_bounds,
    segment_means,
)
from cpc.types import Batch, SoundPosition, UserError
from experiments.command.config import Config, check_word
from experiments.training.objective import BranchOutputs
from experiments.training.plan import Branch, Geometry
from experiments.training.sequences import CONTEXTS, positions


def build_model(config: Config) -> Model:
    """Return encoder, context and predictor by the config's words."""
    options, encoder = config.model, build_encoder(config)
    dtype, width = encoder.dtype, latent_width(config)
    context = CONTEXTS[options.context](options.context_width, options.context_layers, dtype=dtype)
    if options.context_blocks > 1:
        context = context.clone(blocks=options.context_blocks)
    predictor = PREDICTORS[options.predictor](options.num_offsets, width, dtype=dtype)
    if options.segment_threshold:
        of_segments = predictor.clone(num_offsets=options.segment_offsets or 1)
        of_frames = (context.clone(), predictor) if options.segment_offsets else (None, None)
        return make_model(
            SegmentalCPC(
                encoder, context, of_segments, width, options.segment_threshold, *of_frames, dtype
            )
        )
    cuts = module_ends(encoder.num_layers, options.modules)
    return make_model(CPC(encoder, context, predictor, tuple(options.directions), cuts))


def build_encoder(config: Config) -> Any:
    """Return the encoder by the config's words, with its geometry."""
    options = config.model
    check_word("model.encoder", options.encoder, AUDIO_ENCODERS)  # a run may be of another version
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


def geometry(config: Config) -> Geometry:
    """Return the latents and predictions of a window.

    Overlapping windows are no negatives of each other, unless the config asks for it.
    """
    module = build_model(config).module
    offsets = offsets_of_branches(module, choose_offsets(config))
    branches = tuple(map(Branch, name_branches(module), offsets))
    apart = 0 if config.negatives.overlap else config.data.window_samples
    return Geometry(num_latents(config), latent_width(config), branches, apart=apart)


def choose_offsets(config: Config) -> tuple[int, ...]:
    """Return the offset of each prediction; aligned ones have that of their last even share.

    Segments predict the first few of these.

    What the strict bound asks of a prediction is a fixed offset. Where K predictions are aligned to
    F latents, it is where the k-th ends if each takes as many.

    >>> from configs import audio
    >>> config = audio.get_config()
    >>> config.model.num_offsets, config.model.horizon = 4, 12
    >>> choose_offsets(config)
    (1, 5, 8, 12)
    >>> config.model.horizon, config.loss.align_to = 0, 8
    >>> choose_offsets(config)
    (2, 4, 6, 8)
    """
    num, horizon = config.model.num_offsets, config.model.horizon
    if horizon:
        return tuple(np.linspace(horizon, 1, num)[::-1].round().astype(int).tolist())
    num_frames = config.loss.align_to or num
    return tuple(-(-k * num_frames // num) for k in range(1, num + 1))


def check_model(config: Config) -> None:
    """Check that the model's keys go together.

    Raises:
        UserError: they do not; says which to change.
    """
    options = config.model
    if options.context_blocks > 1 and options.context != "gru":
        raise UserError(
            f"model.context_blocks is {options.context_blocks}, and model.context is "
            f"{options.context}: only a gru has blocks, so set model.context_blocks to 1"
        )
    check_horizon(config)
    check_segments(config)
    check_codes(config)


def check_horizon(config: Config) -> None:
    """Check that predictions up to a horizon go with the other keys."""
    options = config.model
    if options.horizon and options.horizon < options.num_offsets:
        raise UserError(
            f"model.horizon is {options.horizon}, below model.num_offsets "
            f"({options.num_offsets}): raise model.horizon, or lower model.num_offsets"
        )
    if options.horizon and config.loss.align_to:
        raise UserError(
            f"model.horizon is {options.horizon} and loss.align_to {config.loss.align_to}: both "
            "say what the predictions are of, so set one of them to 0"
        )
    if options.horizon and options.segment_threshold:
        raise UserError(
            "model.horizon spreads predictions of frames, and with model.segment_threshold "
            "segments predict the next ones: set one of them to 0"
        )


def check_segments(config: Config) -> None:
    """Check that segments go with the other keys."""
    options = config.model
    is_plain = options.modules == 1 and tuple(options.directions) == ("forward",)
    if options.segment_offsets and not options.segment_threshold:
        raise UserError(
            "model.segment_offsets predicts segments, and there are none: set "
            "model.segment_threshold above 0, or model.segment_offsets to 0"
        )
    if options.segment_offsets > options.num_offsets:
        raise UserError(
            f"model.segment_offsets is {options.segment_offsets} and model.num_offsets "
            f"{options.num_offsets}: segments are longer than frames, so predict as many or fewer"
        )
    if options.segment_threshold and options.num_offsets != 1 and not options.segment_offsets:
        raise UserError(
            f"model.num_offsets is {options.num_offsets}: with model.segment_threshold frames and "
            "segments predict the next one, so set model.num_offsets to 1, or give frames contexts "
            "and predictions of their own with model.segment_offsets"
        )
    if options.segment_threshold and not is_plain:
        raise UserError(
            "model.segment_threshold makes two levels of its own: set it to 0, or model.modules "
            "to 1 and model.directions to forward"
        )
    if options.segment_threshold and config.negatives.momentum:
        raise UserError(
            "with model.segment_threshold the segments of the slow encoder would be others than "
            "those of the trained one: set negatives.momentum to 0"
        )
    if options.segment_threshold and config.augment.side != "none":
        raise UserError(
            "with model.segment_threshold the segments of an augmented copy would be others than "
            "those of the clean one: set augment.side to none"
        )


def check_codes(config: Config) -> None:
    """Check that codes of latents go with the other keys."""
    options = config.model
    if options.num_codes and options.modules > 1:
        raise UserError(
            "model.num_codes quantises the latents of the whole encoder, and model.modules cuts it "
            "into parts: set one of them to its default"
        )
    if options.num_codes and config.augment.side != "none":
        raise UserError(
            "with augmentation contexts and latents are of two copies of the sound, of which the "
            "codes would follow the second alone: set model.num_codes to 0, or augment.side to none"
        )
    if options.num_codes and config.optim.accumulate > 1:
        raise UserError(
            "optim.accumulate would leave the codes where they are and add no penalty: set "
            "optim.accumulate or model.num_codes to its default"
        )


def name_branches(module: CPC | SegmentalCPC) -> tuple[str, ...]:
    """Return what predicts by itself: directions of time, modules, or both; or two levels."""
    if isinstance(module, SegmentalCPC):
        return "frames", "segments"
    if not module.cuts:
        return tuple(module.directions)
    both = module.is_bidirectional
    return tuple(f"module {n}" + f" {one}" * both for n, one in module.branches)


def offsets_of_branches(
    module: CPC | SegmentalCPC, offsets: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the offsets that each of these predicts: the first, as many as it has predictions."""
    if isinstance(module, SegmentalCPC):
        frames = 1 if module.frame_predictor is None else module.frame_predictor.num_offsets
        return offsets[:frames], offsets[: module.predictor.num_offsets]
    return (offsets,) * len(module.branches)


def split_branches(module: CPC | SegmentalCPC, outputs: Any, batch: Batch) -> list[BranchOutputs]:
    """Return outputs of each branch, where their latents come from, and which of them exist.

    A backward one counts time, and the line of recordings, from their ends. A module of a shorter
    stride sees the line stretched by as much: a latent is always as long.
    """
    if isinstance(module, SegmentalCPC):
        return split_levels(module, outputs, batch)
    outputs = outputs if len(module.branches) > 1 else (outputs,)
    stride, branches = module.encoder.stride, []
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
        place = SoundPosition(*located, sample, sample + stride, start)
        branches.append(BranchOutputs(one, place, exists))
    return branches


def split_levels(module: SegmentalCPC, outputs: Any, batch: Batch) -> list[BranchOutputs]:
    """Return frames and segments; the sound of a segment is that of its frames."""
    frames, segments = outputs
    exists = module.existing(batch.get("num_samples"), frames.z.shape[1])
    begins = boundaries(frames.z, module.threshold, exists)
    some = segment_means(frames.z, begins, exists)[1]
    time = jnp.arange(begins.shape[1])[None]
    levels = ((frames, exists, (time, time + 1)), (segments, some, segment_bounds(begins, exists)))
    start, stride, branches = batch["sample"][:, None], module.encoder.stride, []
    for one, there, (first, last) in levels:
        located = positions(batch, batch["speaker"], one.z.shape[1])
        place = SoundPosition(*located, start + stride * first, start + stride * last, start)
        branches.append(BranchOutputs(one, place, there))
    return branches
