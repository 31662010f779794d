r"""Contrastive predictive coding on pictures (van den Oord et al. 2018, section 3.2; CPC v2, 2019).

Trains, watches the information, probes the frozen features and writes a report:

    python -m experiments.image --config configs/image_fashion_mnist.py --workdir runs/fashion

Any key of the config can be set, and the same command again resumes:

    python -m experiments.image --config configs/image_fashion_mnist.py --workdir runs/low \
        --config.optim.learning_rate=1e-4
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from configs import image_fashion_mnist
from cpc.data import augment, make_image_batches
from cpc.models import (
    ImageCPC,
    LinearPredictor,
    MaskedRowConv,
    Model,
    ResNet,
    RowGRU,
    SmallConvEncoder,
    check_offsets,
    first_clean_offset,
    frame_positions,
    make_model,
    patch_grid,
    resnet_stages,
)
from cpc.train import check_batch_size, run_on_first
from cpc.types import Batch, UserError
from experiments import image_probes, launch, training
from experiments.audit import AUDIT
from experiments.image_data import ImageData, load_data, skipped
from experiments.launch import Config
from experiments.memory import check_memory
from experiments.objective import View, build_objective
from experiments.run_problem import run_problem

CONTEXTS = {"conv": MaskedRowConv, "gru": RowGRU}


def run(
    config: Config, workdir: str | None, device: str = "auto", only_audit: bool = False
) -> None:
    """Check the config, read the data, and run the problem that they make."""
    if config is None:
        raise UserError("no --config is given: name one, such as configs/image_fashion_mnist.py")
    launch.check_config(config, image_fashion_mnist.get_config())
    image_probes.check_options(config)
    mesh = launch.start(device)
    check_batch_size(config.data.batch_size, mesh)
    offsets = choose_offsets(config)
    model = build_model(config, offsets)
    check_memory(config, mesh, *sizes_of_loss(config, offsets))
    folder = launch.open_run(workdir, config, mesh)
    data = launch.load_in_turn(lambda: load_data(config, print))
    launch.write_skipped(folder, skipped(data).items())
    image_probes.check_data(config, data)

    of_config = functools.partial(prepare, config)
    probe = functools.partial(image_probes.run_tasks, config, folder, data, model, of_config)
    problem = make_problem(config, data, probe, mesh)
    run_on_first(image_probes.save_augmented, folder, problem)
    run_problem(config, folder, problem, mesh, only_audit)


def make_problem(
    config: Config, data: ImageData, probe: Callable, mesh: jax.sharding.Mesh | None = None
) -> training.Problem:
    """Model, loss and batches of a config."""
    offsets, batch_size = choose_offsets(config), config.data.batch_size
    evaluates = config.evaluate.num_images > 0
    draw = functools.partial(
        make_image_batches,
        batch_size=batch_size,
        process=jax.process_index(),
        num_processes=jax.process_count(),
    )
    draw_test = draw(data.test, seed=config.seed + 1) if evaluates else None
    return training.Problem(
        model=build_model(config, offsets),
        objective=build_objective(config, offsets, mesh),
        offsets=offsets,
        views=tuple(config.model.directions),
        prepare=functools.partial(prepare, config),
        look=look,
        label=lambda batch: {"class": batch["label"][:, None, None]},
        draw=draw(data.train, seed=config.seed),
        draw_test=draw_test,
        draw_any_test=draw_test,
        num_tests=-(-config.evaluate.num_images // batch_size),
        per_step=(batch_size, "pictures"),
        probe=probe,
    )


def choose_offsets(config: Config) -> tuple[int, ...]:
    """Rows ahead that are predicted, from the first that shares no pixel with the context."""
    options = config.model
    first = options.first_offset or first_clean_offset(options.patch, options.stride)
    offsets = tuple(range(first, first + options.num_offsets))
    size = (config.augment.crop, config.augment.crop)
    check_offsets(offsets, patch_grid(size, options.patch, options.stride), options.directions)
    return offsets


def sizes_of_loss(config: Config, offsets: tuple[int, ...]) -> tuple[int, int, int]:
    """Latents of a picture, their width, and offsets of all directions together."""
    options, size = config.model, (config.augment.crop, config.augment.crop)
    width = options.target_width or build_encoder(options, jnp.float32)[1]
    num_latents = math.prod(patch_grid(size, options.patch, options.stride))
    return num_latents, width, len(offsets) * len(options.directions)


def build_model(config: Config, offsets: tuple[int, ...]) -> Model:
    """Encoder, contexts and predictors by the config's words."""
    options = config.model
    launch.check_word("model.context", options.context, CONTEXTS)
    launch.check_word("model.dtype", options.dtype, launch.DTYPES)
    dtype = jnp.dtype(options.dtype)
    encoder, width = build_encoder(options, dtype)
    context = functools.partial(
        CONTEXTS[options.context], options.context_width, options.context_layers, dtype=dtype
    )
    predictor = functools.partial(
        LinearPredictor, len(offsets), options.target_width or width, dtype=dtype
    )
    return make_model(
        ImageCPC(
            encoder,
            context,
            predictor,
            directions=tuple(options.directions),
            target_width=options.target_width or None,
            channels=1 if config.augment.grey else config.data.channels,
            dtype=dtype,
        )
    )


def build_encoder(options: Config, dtype: Any) -> tuple[SmallConvEncoder | ResNet, int]:
    """The encoder of a patch, and the width of its latents."""
    if options.encoder == "small":
        widths = (options.width // 4, options.width // 2, options.width)
        return SmallConvEncoder(widths, norm=options.norm, dtype=dtype), options.width
    name, depth = options.encoder[:6], options.encoder[6:]
    if name != "resnet" or not depth.isdecimal():
        raise UserError(
            f"model.encoder is {options.encoder!r}: choose small, or resnet and a depth, such as "
            "resnet18"
        )
    stages = resnet_stages(int(depth), options.stages or None)
    encoder = ResNet(
        stages,
        norm=options.norm,
        pooled_stem=options.pooled_stem,
        remat=options.remat,
        dtype=dtype,
    )
    return encoder, stages[-1].width


def prepare(config: Config, batch: Batch, rng: Any, train: bool) -> Batch:
    """Raw pictures (b, y, x, ch) to patches (b, i, j, y, x, ch), on the device."""
    options, patch = config.augment, (config.model.patch, config.model.stride)
    images = batch["x"]
    of_picture, of_patch, of_jitter = jax.random.split(rng, 3)
    if train:
        images = augment.crop_and_flip(of_picture, images, options.crop)
    else:
        images = augment.centre_crop(images, options.crop)
    images = augment.scale_pixels(images)
    if options.grey:
        images = augment.to_grey(images)
    patches = augment.cut_patches(images, *patch)
    if train:
        patches = augment.augment_patches(
            of_patch,
            patches,
            colour_drop=options.colour_drop,
            rotation_degrees=options.rotation_degrees,
            shear=options.shear,
            elastic_pixels=options.elastic_pixels,
            brightness=options.brightness,
            contrast=options.contrast,
        )
        if options.jitter:
            patches = augment.jitter_patches(of_jitter, patches, options.jitter)
    return {**batch, "x": patches}


def look(outputs: Any, batch: Batch) -> list[View]:
    """Outputs and positions of each direction."""
    return [
        (direction, frame_positions(direction.z, batch["sequence"], batch["label"]))
        for direction in outputs
    ]


if __name__ == "__main__":
    CONFIG = launch.define_config()
    launch.run(lambda: run(CONFIG.value, launch.WORKDIR.value, launch.DEVICE.value, AUDIT.value))
