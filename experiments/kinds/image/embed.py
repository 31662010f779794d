"""Features of image files."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from configs.image import KEYS
from cpc import models
from cpc.data import prefetch
from cpc.data.image_file import COMPANION_SUFFIXES, IMAGE_SUFFIXES, read_image
from cpc.data.walk import Skipped, check_name
from cpc.types import UserError
from experiments.command.config import Config, check_config, load_config
from experiments.kinds.image.data import grid_of, preprocess, side_of
from experiments.training.problem import Embedding
from experiments.training.sequences import list_files, skip

BATCH_IMAGES = 64


def embed_files(
    pretrained: models.Pretrained, root: pathlib.Path, names: Sequence[str], skipped: list[Skipped]
) -> Embedding:
    """Return features (i, j, width) of an image, or of all images in a folder."""
    files = list(list_files(root, IMAGE_SUFFIXES, skipped, COMPANION_SUFFIXES).items())

    def embed() -> Iterator[tuple[str, dict[str, np.ndarray], float]]:
        config = read_config(pretrained)
        layers = models.Layers(
            pretrained.module,
            pretrained.variables,
            names,
            lambda x: preprocess(config, {"x": x}, jax.random.key(0), False)["x"],
        )

        def read_batch(number: int):
            kept, failed = [], []
            for name, path in files[number * BATCH_IMAGES : (number + 1) * BATCH_IMAGES]:
                with skip(name, failed):
                    check_name(name)
                    size, channels = config.data.size, config.data.channels
                    kept.append((name, read_image(path, size=size, channels=channels)))
            return kept, failed

        for kept, failed in prefetch(read_batch, 0, -(-len(files) // BATCH_IMAGES)):
            skipped.extend(failed)
            if kept:
                found = layers.embed_rows([x for _, x in kept])
                for (name, _), grids in zip(kept, found, strict=True):
                    yield name, grids, 1.0

    return Embedding(embed(), float(len(files)), "images", None)


def read_config(pretrained: models.Pretrained) -> Config:
    """Return a model's config, by which images are cut into patches."""
    recorded = pretrained.about.get("config")
    if not isinstance(recorded, Mapping):
        raise UserError("the model has no config for cutting images: export the model again")
    config = load_config(recorded, KEYS)
    check_config(config, KEYS)
    cut = [*grid_of(config), config.model.patch, config.model.patch]
    if cut != pretrained.input["shape"][:4] or side_of(config) > config.data.size:
        shape = pretrained.input["shape"]
        raise UserError(f"the model has patches {shape}, but its config {cut}: export it again")
    return config
