"""The network of an audio config, its geometry, and the positions of its latents."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from cpc import models
from cpc.types import Batch
from experiments.command.config import Config, subset
from experiments.training.checks import reject
from experiments.training.objective import BranchOutputs
from experiments.training.plan import Branch, Geometry
from experiments.training.sequences import CONTEXTS, positions, shared_input


def build_model(config: Config) -> models.Model:
    """Build the encoder, context network and predictor of a config."""
    options, encoder = config.model, build_encoder(config)
    dtype, width = encoder.dtype, encoder.width
    context = CONTEXTS[options.context](options.context_width, options.context_layers, dtype=dtype)
    if options.context_blocks > 1:
        context = context.clone(blocks=options.context_blocks)
    predictor = models.PREDICTORS[options.predictor](options.num_offsets, width, dtype=dtype)
    if threshold := options.segment_threshold:
        segments = predictor.clone(num_offsets=options.segment_offsets or 1)
        frames = (context.clone(), predictor) if options.segment_offsets else (None, None)
        module = models.SegmentalCPC(encoder, context, segments, width, threshold, *frames, dtype)
    else:
        cuts = models.module_ends(encoder.num_layers, options.modules)
        module = models.CPC(encoder, context, predictor, tuple(options.directions), cuts)
    return models.make_model(module)


def build_encoder(config: Config) -> Any:
    """Build the encoder of a config, with a quantizer if `model.num_codes` is set."""
    options, dtype = config.model, jnp.dtype(config.model.dtype)
    given = subset(options, "norm", "padding", "remat")
    if options.encoder == "cepstra":
        given["num_cepstra"] = options.num_cepstra
    encoder = models.AUDIO_ENCODERS[options.encoder](options.width, **given, dtype=dtype)
    if not options.num_codes:
        return encoder
    return models.QuantizedEncoder(
        encoder,
        options.num_codes,
        options.code_width,
        decay=options.code_decay,
        commitment=options.commitment,
        restart=options.restart_codes,
        dtype=dtype,
    )


def num_latents(config: Config) -> int:
    """Return the number of latents per training window."""
    return build_encoder(config).num_latents(config.data.window_samples)


def geometry(config: Config) -> Geometry:
    """Return a window's geometry: the numbers of latents and predictions."""
    module, offsets = build_model(config).module, choose_offsets(config)
    if isinstance(module, models.SegmentalCPC):
        frames, num = module.frame_predictor, module.predictor.num_offsets
        own = offsets[: 1 if frames is None else frames.num_offsets]
        # Segment lengths vary.
        parts = [("frames", own, module.encoder), ("segments", offsets[:num], None)]
    else:
        parts, both = [], module.is_bidirectional
        for number, direction in module.branches:
            name = f"module {number}" + f" {direction}" * both if module.cuts else direction
            parts.append((name, offsets, encoder_of(module, number)))
    branches = tuple(Branch(name, own, shared_input(own, encoder)) for name, own, encoder in parts)
    sizes = num_latents(config), module.encoder.width, branches
    apart = 0 if config.negatives.overlap else config.data.window_samples
    is_aligned = config.loss.align_to > 0
    return Geometry(*sizes, window="data.window_samples", apart=apart, is_aligned=is_aligned)


def encoder_of(module: models.CPC, number: int) -> Any:
    """Return the encoder up to the end of module `number`."""
    is_part = number <= len(module.cuts)
    return module.encoder.upto(module.cuts[number - 1], {})[0] if is_part else module.encoder


def choose_offsets(config: Config) -> tuple[int, ...]:
    """Return the offset of each prediction, evenly spaced up to `model.horizon` or `loss.align_to`.

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
    """Validate the model keys, and their combinations with other sections of the config."""
    options, align_to = config.model, config.loss.align_to
    threshold = options.segment_threshold
    is_augmented, has_codes = config.augment.side != "none", options.num_codes > 0
    is_plain = options.modules == 1 and tuple(options.directions) == ("forward",)
    reject(config,
        (options.context_blocks > 1 and options.context != "gru",
         "model.context_blocks model.context",
         "only a GRU can have blocks; set model.context=gru or model.context_blocks=1"),
        (0 < options.horizon < options.num_offsets, "model.horizon model.num_offsets",
         "the horizon is below the number of predictions; raise model.horizon or set it to 0"),
        (options.horizon and align_to, "model.horizon loss.align_to",
         "both determine the offsets of predictions; set one of them to 0"),
        (options.horizon and threshold, "model.horizon model.segment_threshold",
         "segments only predict the next segments; set model.horizon=0"),
        (0 < align_to < options.num_offsets, "loss.align_to model.num_offsets",
         "each prediction needs its own latent; raise loss.align_to, or lower model.num_offsets"),
        (align_to and config.loss.name != "info_nce", "loss.align_to loss.name",
         "alignments sum log-probabilities; set loss.name=info_nce or loss.align_to=0"),
        (align_to and config.negatives.queue, "loss.align_to negatives.queue",
         "alignments only use negatives from the batch; set negatives.queue=0"),
        (options.segment_offsets and not threshold, "model.segment_offsets model.segment_threshold",
         "no segments exist; set model.segment_threshold above 0, or model.segment_offsets to 0"),
        (options.segment_offsets > options.num_offsets, "model.segment_offsets model.num_offsets",
         "segments are longer than frames; set model.segment_offsets to at most model.num_offsets"),
        (threshold and options.num_offsets != 1 and not options.segment_offsets,
         "model.segment_threshold model.num_offsets",
         "frames share the predictor of segments; set model.num_offsets to 1, or set "
         "model.segment_offsets to give segments a separate predictor"),
        (threshold and not is_plain, "model.segment_threshold model.modules model.directions",
         "segments need a single forward module; set model.segment_threshold=0 to disable them"),
        (threshold and config.negatives.momentum, "model.segment_threshold negatives.momentum",
         "the slow encoder would find different segments; set negatives.momentum to 0"),
        (threshold and is_augmented, "model.segment_threshold augment.side",
         "augmented copies would have different segments; set augment.side to none"),
        (has_codes and options.modules > 1, "model.num_codes model.modules",
         "codes only quantize the last module; set model.num_codes=0 or model.modules=1"),
        (has_codes and is_augmented, "model.num_codes augment.side",
         "codes would only follow latents; set model.num_codes=0 or augment.side=none"),
        (has_codes and config.optim.accumulate > 1, "model.num_codes optim.accumulate",
         "accumulated gradients do not update codes; set model.num_codes=0 or optim.accumulate=1"),
    )  # fmt: skip


def split_branches(
    module: models.CPC | models.SegmentalCPC, outputs: Any, batch: Batch
) -> list[BranchOutputs]:
    """Return each branch's outputs, with its latents' positions and mask.

    A branch is one module's predictions in one direction of time. Backward branches count positions
    from a window's end. Positions in a module are scaled to the stride of the whole encoder.
    """
    if isinstance(module, models.SegmentalCPC):
        return split_levels(module, outputs, batch)
    outputs = outputs if len(module.branches) > 1 else (outputs,)
    stride, branches = module.encoder.stride, []
    for (number, direction), one in zip(module.branches, outputs, strict=True):
        own = encoder_of(module, number)
        time = jnp.arange(one.z.shape[1])[None]
        start, mask = batch["sample"][:, None] * (stride // own.stride), None
        count: Any = time.size
        if "num_samples" in batch:
            count = jnp.minimum(own.num_existing(batch["num_samples"]), time.size)[:, None]
            mask = time < count
        if direction == "backward":
            start = -(start + stride * count)
        place = positions(batch, batch["speaker"], start, stride * time, stride * (time + 1))
        branches.append(BranchOutputs(one, place, mask))
    return branches


def split_levels(module: models.SegmentalCPC, outputs: Any, batch: Batch) -> list[BranchOutputs]:
    """Return frame outputs and segment outputs with their positions and masks.

    A segment's position spans all samples of its frames.
    """
    frames, segments = outputs
    mask = module.existing(batch.get("num_samples"), frames.z.shape[1])
    begins = models.boundaries(frames.z, module.threshold, mask)
    some = models.segment_means(frames.z, begins, mask)[1]
    time = jnp.arange(begins.shape[1])[None]
    bounds = (time, time + 1), models.segment_bounds(begins, mask)
    start, stride = batch["sample"][:, None], module.encoder.stride
    places = (
        positions(batch, batch["speaker"], start, stride * first, stride * last)
        for first, last in bounds
    )
    return list(map(BranchOutputs, (frames, segments), places, (mask, some)))
