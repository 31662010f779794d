"""The kind "image", which predicts patches (van den Oord et al. 2018, section 3.2; CPC v2)."""

import functools
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from configs.image import KEYS
from cpc import models
from cpc.data import make_image_batches
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset
from experiments.kinds.image.data import ImageData, grid_of, load_data, preprocess, side_of
from experiments.kinds.image.embed import embed_files
from experiments.kinds.image.probes import feature_sets, probe_tasks
from experiments.kinds.image.sections import PAGE, save_augmented
from experiments.training.checks import check_shared, reject
from experiments.training.objective import BranchOutputs
from experiments.training.plan import Branch, Geometry, Plan
from experiments.training.probes import Probes
from experiments.training.problem import HeldOut, Problem

CONTEXTS = {"conv": models.MaskedRowConv, "gru": models.RowGRU}
UNRANKED = ("fine_tuned", "supervised", "neighbours", "units")  # do not compare features
PROBES = Probes(probe_tasks, feature_sets, unranked=UNRANKED)


def make_problem(plan: Plan, data: ImageData) -> Problem:
    """Combine a validated config (`plan`) with its model, batches and held-out data."""
    config, held_out, batch_size = plan.config, None, plan.config.data.batch_size
    processes = {"process": jax.process_index(), "num_processes": jax.process_count()}
    draw = functools.partial(make_image_batches, batch_size=batch_size, **processes)
    if config.evaluate.num_images > 0:
        draw_test = draw(data.test, seed=config.seed + 1)
        # Use each image at most once, because copies of a candidate would inflate N.
        wanted, most = -(-config.evaluate.num_images // batch_size), len(data.test) // batch_size
        held_out = HeldOut(draw_test, draw_test, min(wanted, most))
    return Problem(
        plan=plan,
        model=build_model(config),
        preprocess=functools.partial(preprocess, config),
        split_branches=split_branches,
        label=lambda batch: {"class": batch["label"][:, None, None]},
        draw=draw(data.train, seed=config.seed),
        held_out=held_out,
        per_step=(batch_size, "images"),
        record=lambda folder: record(config, folder, data),
    )


def choose_offsets(config: Config) -> tuple[int, ...]:
    """Return the offsets, in patches, from a context c to its predicted latents.

    By default, the first offset is the smallest one whose patches share no pixels with c.
    """
    options = config.model
    first = options.first_offset or models.first_clean_offset(options.patch, options.stride)
    offsets = tuple(range(first, first + options.num_offsets))
    models.check_offsets(offsets, grid_of(config), options.directions)
    return offsets


def geometry(config: Config) -> Geometry:
    """Validate a config and return its geometry: the numbers of latents and predictions."""
    check_shared(config)
    reject(config,
        (side_of(config) > config.data.size, "augment.crop data.size",
         "the crop exceeds the image; lower augment.crop"),
        (config.augment.jitter > config.model.patch, "augment.jitter model.patch",
         "the jittered part exceeds the patch; lower augment.jitter"),
    )  # fmt: skip
    offsets, module = choose_offsets(config), build_model(config).module
    width = config.model.target_width or build_encoder(config.model, jnp.float32)[1]
    names = module.directions
    if module.cuts:
        names = [f"module {number} {direction}" for number, direction in module.branches]
    branches = tuple(Branch(name, offsets) for name in names)
    return Geometry(math.prod(grid_of(config)), width, branches)


def build_model(config: Config) -> models.Model:
    """Build the encoder, context networks and predictors of a config."""
    options, offsets = config.model, choose_offsets(config)
    dtype = jnp.dtype(options.dtype)
    encoder, width = build_encoder(options, dtype)
    sizes = options.context_width, options.context_layers
    context = functools.partial(CONTEXTS[options.context], *sizes, dtype=dtype)
    targets = options.target_width or width
    predictor = functools.partial(models.LinearPredictor, len(offsets), targets, dtype=dtype)
    module = models.ImageCPC(
        encoder,
        context,
        predictor,
        directions=tuple(options.directions),
        target_width=options.target_width or None,
        channels=1 if config.augment.grey else config.data.channels,
        dtype=dtype,
        cuts=models.module_ends(encoder.num_layers, options.modules),
    )
    return models.make_model(module)


def build_encoder(
    options: Config, dtype: Any
) -> tuple[models.SmallConvEncoder | models.ResNet, int]:
    """Build the patch encoder, and return it with the width of its latents."""
    if options.encoder == "small":
        widths = (options.width // 4, options.width // 2, options.width)
        return models.SmallConvEncoder(widths, norm=options.norm, dtype=dtype), options.width
    name, depth = options.encoder[:6], options.encoder[6:]
    if name != "resnet" or not depth.isdecimal():
        raise UserError(f"model.encoder must be small, resnet18, ... (got {options.encoder!r})")
    stages = models.resnet_stages(int(depth), options.stages or None)
    given = subset(options, "norm", "pooled_stem", "remat")
    return models.ResNet(stages, **given, dtype=dtype), stages[-1].width


def split_branches(outputs: Any, batch: Batch) -> list[BranchOutputs]:
    """Return outputs and positions for each branch, which predicts in one direction.

    Images with the same label form a group. Each unlabeled image is a group by itself.
    """
    label, sequence = batch["label"], batch["sequence"]
    group = jnp.where(label < 0, -1 - sequence, label)
    places = (models.frame_positions(one.z, sequence, group) for one in outputs)
    return list(map(BranchOutputs, outputs, places))


def record(config: Config, workdir: pathlib.Path, data: ImageData) -> None:
    """Write patches of some training images, with and without augmentation, for the page."""
    draw = make_image_batches(data.train, batch_size=config.data.batch_size, seed=config.seed)
    save_augmented(workdir, config, draw(0))


def describe_input(config: Config, workdir: pathlib.Path | None = None) -> dict[str, Any]:
    """Return the shape of the model input, which is a grid of patches."""
    patch, channels = config.model.patch, 1 if config.augment.grey else config.data.channels
    return {"kind": "image", "shape": [*grid_of(config), patch, patch, channels]}
