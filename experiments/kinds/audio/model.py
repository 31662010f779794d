"""The network that an audio config asks for, and where its latents come from."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from cpc import models
from cpc.types import Batch
from experiments.command.config import Config
from experiments.training.checks import reject
from experiments.training.objective import BranchOutputs
from experiments.training.plan import Branch, Geometry
from experiments.training.sequences import CONTEXTS, positions, shared_input


def build_model(config: Config) -> models.Model:
    """Return encoder, context and predictor by the config's words."""
    options, encoder = config.model, build_encoder(config)
    dtype, width = encoder.dtype, latent_width(config)
    context = CONTEXTS[options.context](options.context_width, options.context_layers, dtype=dtype)
    if options.context_blocks > 1:
        context = context.clone(blocks=options.context_blocks)
    predictor = models.PREDICTORS[options.predictor](options.num_offsets, width, dtype=dtype)
    if options.segment_threshold:
        of_segments = predictor.clone(num_offsets=options.segment_offsets or 1)
        of_frames = (context.clone(), predictor) if options.segment_offsets else (None, None)
        return models.make_model(
            models.SegmentalCPC(
                encoder, context, of_segments, width, options.segment_threshold, *of_frames, dtype
            )
        )
    cuts = models.module_ends(encoder.num_layers, options.modules)
    return models.make_model(
        models.CPC(encoder, context, predictor, tuple(options.directions), cuts)
    )


def build_encoder(config: Config) -> Any:
    """Return the encoder by the config's words, with its geometry."""
    options = config.model
    own = {"num_cepstra": options.num_cepstra} if options.encoder == "cepstra" else {}
    encoder = models.AUDIO_ENCODERS[options.encoder](
        options.width,
        **own,
        norm=options.norm,
        padding=options.padding,
        dtype=jnp.dtype(options.dtype),
        remat=options.remat,
    )
    if not options.num_codes:
        return encoder
    return models.QuantizedEncoder(
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
    """Return the latents and predictions of a window."""
    module, offsets = build_model(config).module, choose_offsets(config)
    if isinstance(module, models.SegmentalCPC):
        of_frames = module.frame_predictor
        counts = {"frames": 1 if of_frames is None else of_frames.num_offsets}
        counts["segments"] = module.predictor.num_offsets
    elif module.cuts:
        both = module.is_bidirectional
        names = [f"module {n}" + f" {direction}" * both for n, direction in module.branches]
        counts = dict.fromkeys(names, len(offsets))
    else:
        counts = dict.fromkeys(module.directions, len(offsets))
    encoders = [module.encoder, None]  # segments have no fixed length
    if isinstance(module, models.CPC):
        encoders = [encoder_of(module, number) for number, _ in module.branches]
    branches = tuple(
        Branch(name, offsets[:number], shared_input(offsets[:number], encoder))
        for (name, number), encoder in zip(counts.items(), encoders, strict=True)
    )
    apart = 0 if config.negatives.overlap else config.data.window_samples
    width, is_aligned = latent_width(config), config.loss.align_to > 0
    return Geometry(
        num_latents(config),
        width,
        branches,
        window="data.window_samples",
        apart=apart,
        is_aligned=is_aligned,
    )


def encoder_of(module: models.CPC, number: int) -> Any:
    """Return the encoder up to the end of a module, by the module's number."""
    is_part = number <= len(module.cuts)
    return module.encoder.upto(module.cuts[number - 1], {})[0] if is_part else module.encoder


def choose_offsets(config: Config) -> tuple[int, ...]:
    """Return the offset of each prediction; of K aligned to F latents, the end of an even share.

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
    """Check that the keys of the model go together, and with those of the loss."""
    options, align_to = config.model, config.loss.align_to
    threshold = options.segment_threshold
    is_augmented, has_codes = config.augment.side != "none", options.num_codes > 0
    is_plain = options.modules == 1 and tuple(options.directions) == ("forward",)
    reject(config,
        (options.context_blocks > 1 and options.context != "gru",
         "model.context_blocks model.context",
         "only a gru has blocks; set model.context_blocks to 1"),
        (0 < options.horizon < options.num_offsets, "model.horizon model.num_offsets",
         "the horizon is below the number of predictions; raise model.horizon, or lower "
         "model.num_offsets"),
        (options.horizon and align_to, "model.horizon loss.align_to",
         "both say what the predictions are of; set one of them to 0"),
        (options.horizon and threshold, "model.horizon model.segment_threshold",
         "the horizon spreads predictions of frames, and segments predict the next ones; set one "
         "of them to 0"),
        (0 < align_to < options.num_offsets, "loss.align_to model.num_offsets",
         "each prediction takes a latent; raise loss.align_to, or lower model.num_offsets"),
        (align_to and config.loss.name != "info_nce", "loss.align_to loss.name",
         "an alignment adds up log-probabilities; choose info_nce, or set loss.align_to to 0"),
        (align_to and config.negatives.queue, "loss.align_to negatives.queue",
         "an alignment takes its negatives from the batch alone; set negatives.queue=0"),
        (options.segment_offsets and not threshold, "model.segment_offsets model.segment_threshold",
         "there are no segments to predict; set model.segment_threshold above 0, or "
         "model.segment_offsets to 0"),
        (options.segment_offsets > options.num_offsets, "model.segment_offsets model.num_offsets",
         "segments are longer than frames, so predict as many or fewer"),
        (threshold and options.num_offsets != 1 and not options.segment_offsets,
         "model.segment_threshold model.num_offsets",
         "frames and segments predict the next one; set model.num_offsets to 1, or give frames "
         "contexts and predictions of their own with model.segment_offsets"),
        (threshold and not is_plain, "model.segment_threshold model.modules model.directions",
         "segments make two levels of their own; set model.segment_threshold to 0, or "
         "model.modules to 1 and model.directions to forward"),
        (threshold and config.negatives.momentum, "model.segment_threshold negatives.momentum",
         "the slow encoder would have other segments than the trained one; set "
         "negatives.momentum to 0"),
        (threshold and is_augmented, "model.segment_threshold augment.side",
         "an augmented copy would have other segments than the clean one; set augment.side to "
         "none"),
        (has_codes and options.modules > 1, "model.num_codes model.modules",
         "codes are of the latents of the whole encoder; set one of them to its default"),
        (has_codes and is_augmented, "model.num_codes augment.side",
         "contexts and latents are of two copies of the sound, and the codes would follow the "
         "second alone; set model.num_codes to 0, or augment.side to none"),
        (has_codes and config.optim.accumulate > 1, "model.num_codes optim.accumulate",
         "parts of a batch would leave the codes where they are and add no penalty; set one of "
         "them to its default"),
    )  # fmt: skip


def split_branches(
    module: models.CPC | models.SegmentalCPC, outputs: Any, batch: Batch
) -> list[BranchOutputs]:
    """Return outputs of each branch, where their latents come from, and which of them exist.

    A backward one counts from the ends. A module of a shorter stride sees the line stretched.
    """
    if isinstance(module, models.SegmentalCPC):
        return split_levels(module, outputs, batch)
    outputs = outputs if len(module.branches) > 1 else (outputs,)
    stride, branches = module.encoder.stride, []
    for (number, direction), one in zip(module.branches, outputs, strict=True):
        own = encoder_of(module, number)
        time = jnp.arange(one.z.shape[1])[None]
        start, exists = batch["sample"][:, None] * (stride // own.stride), None
        count: Any = time.size
        if "num_samples" in batch:
            count = jnp.minimum(own.num_existing(batch["num_samples"]), time.size)[:, None]
            exists = time < count
        if direction == "backward":
            start = -(start + stride * count)
        place = positions(batch, batch["speaker"], start, stride * time, stride * (time + 1))
        branches.append(BranchOutputs(one, place, exists))
    return branches


def split_levels(module: models.SegmentalCPC, outputs: Any, batch: Batch) -> list[BranchOutputs]:
    """Return frames and segments; the sound of a segment is that of its frames."""
    frames, segments = outputs
    exists = module.existing(batch.get("num_samples"), frames.z.shape[1])
    begins = models.boundaries(frames.z, module.threshold, exists)
    some = models.segment_means(frames.z, begins, exists)[1]
    time = jnp.arange(begins.shape[1])[None]
    levels = (
        (frames, exists, (time, time + 1)),
        (segments, some, models.segment_bounds(begins, exists)),
    )
    start, stride = batch["sample"][:, None], module.encoder.stride
    return [
        BranchOutputs(
            one, positions(batch, batch["speaker"], start, stride * first, stride * last), there
        )
        for one, there, (first, last) in levels
    ]
