"""Features of image files."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from configs.image import KEYS
from cpc import models
from cpc.data import prefetch
from cpc.data.image_file import COMPANION_SUFFIXES, IMAGE_SUFFIXES, read_image
from cpc.data.walk import check_name
from cpc.models import patch_grid
from cpc.types import UserError
from experiments.command.config import Config, check_config, load_config
from experiments.kinds.image.prepare import prepare, side_of
from experiments.training.embedding import list_files, skip
from experiments.training.problem import Embedding

BATCH_IMAGES = 64


def embed_files(
    pretrained: models.Pretrained,
    root: pathlib.Path,
    names: Sequence[str],
    skipped: list[tuple[str, str]],
) -> Embedding:
    """Return the features of an image, or of every image below a folder, on their way."""
    files = list_files(root, IMAGE_SUFFIXES, skipped, COMPANION_SUFFIXES)
    return Embedding(
        features=embed_images(pretrained, files, names, skipped),
        total=float(len(files)),
        unit="images",
        frame_seconds=None,
    )


def read_config(pretrained: models.Pretrained) -> Config:
    """Return the config by which images are brought to what a model takes.

    Raises:
        UserError: there is none, or its patches are not those of the model.
    """
    recorded = pretrained.about.get("config")
    if not isinstance(recorded, Mapping):
        raise UserError("the model does not say how images were cut into patches: export it again")
    config = load_config(recorded, KEYS)
    check_config(config, KEYS)
    crop, patch = side_of(config), config.model.patch
    cut = [*patch_grid((crop, crop), patch, config.model.stride), patch, patch]
    if cut != pretrained.input["shape"][:4] or crop > config.data.size:
        raise UserError(
            f"the model takes patches {pretrained.input['shape']} and its config cuts {cut}: "
            "export it again"
        )
    return config


def embed_images(
    pretrained: models.Pretrained,
    files: dict[str, pathlib.Path],
    names: Sequence[str],
    skipped: list[tuple[str, str]],
) -> Iterator[tuple[str, dict[str, np.ndarray], float]]:
    """Yield layers over each image's grid of patches (i, j, width), prepared as in evaluation."""
    config = read_config(pretrained)
    layers = models.Layers(
        pretrained.module,
        pretrained.variables,
        names,
        lambda x: prepare(config, {"x": x}, jax.random.key(0), False)["x"],
    )
    named = list(files.items())

    def read_batch(number: int):
        kept, failed = [], []
        for name, path in named[number * BATCH_IMAGES : (number + 1) * BATCH_IMAGES]:
            with skip(name, failed):
                size, channels = config.data.size, config.data.channels
                check_name(name)
                pixels = read_image(path, size=size, channels=channels)
                kept.append((name, pixels))
        return kept, failed

    for kept, failed in prefetch(read_batch, 0, -(-len(named) // BATCH_IMAGES)):
        skipped += failed
        if not kept:
            continue
        for (name, _), grids in zip(kept, layers.embed_rows([x for _, x in kept]), strict=True):
            yield name, grids, 1.0
