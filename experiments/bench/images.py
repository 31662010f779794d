"""Pictures: how fast they are fed, and what cutting them into patches costs the encoder."""

import io
import pathlib
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from cpc.data import Images, make_image_batches, prefetch, read_image_folder
from cpc.data.augment import cut_patches
from cpc.models import ResNet, resnet_stages
from experiments.bench.step import measure_rounds
from experiments.bench.table import Row, Target

NUM_FILES, FILE_PIXELS = 512, 256
#: Pictures of 64 pixels in 7x7 patches of 16, against as many pixels whole.
BATCH, SIDE, PATCH, STRIDE = 16, 64, 16, 8


def image_rows(num_batches: int, num_rounds: int) -> list[Row]:
    """Feeding small pictures and JPEG files, and encoding patches."""
    return [small_row(num_batches), jpeg_row(), patch_row(num_rounds)]


def small_row(num_batches: int) -> Row:
    """Pictures of the size and number of Fashion-MNIST, through the training's own pipeline."""
    pixels = np.random.default_rng(0).integers(0, 256, (60_000, 28, 28, 1), np.uint8)
    images = Images(pixels, np.zeros(len(pixels), np.int32), ("one",))
    draw = make_image_batches(images, batch_size=256, seed=0)
    batches = prefetch(draw, 0, num_batches + 1, num_threads=2)
    next(batches)  # the threads have started
    begin = time.perf_counter()
    for _ in batches:
        pass
    rate = 256 * num_batches / (time.perf_counter() - begin)
    text = f"{rate:,.0f} pictures/s of 28 by 28 pixels"
    figures = {"pictures_per_second": rate}
    return Row("picture pipeline", figures, text, Target("pictures_per_second", 20_000))


def jpeg_row() -> Row:
    """JPEG files decoded by the folder reader on threads, against the decoder alone on as many."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        (root / "train" / "one").mkdir(parents=True)
        rng, photographs = np.random.default_rng(0), load_sample_images().images
        paths = [root / "train" / "one" / f"{i}.jpeg" for i in range(NUM_FILES)]
        for i, path in enumerate(paths):
            top, left = rng.integers(0, 427 - FILE_PIXELS), rng.integers(0, 640 - FILE_PIXELS)
            crop = photographs[i % 2][top : top + FILE_PIXELS, left : left + FILE_PIXELS]
            Image.fromarray(crop).save(path, quality=90)

        def decode(path):
            with Image.open(io.BytesIO(path.read_bytes())) as image:
                image.load()

        begin = time.perf_counter()
        with ThreadPoolExecutor() as pool:
            list(pool.map(decode, paths))
        alone = NUM_FILES / (time.perf_counter() - begin)
        begin = time.perf_counter()
        read_image_folder(root, "train", log=lambda line: None)
        rate = NUM_FILES / (time.perf_counter() - begin)
    figures = {
        "pictures_per_second": rate,
        "decoder_pictures_per_second": alone,
        "share_of_decoder": rate / alone,
    }
    text = f"{rate:,.0f} pictures/s, {rate / alone:.2f} of the decoder alone"
    return Row("JPEG files of 256 pixels", figures, text, Target("pictures_per_second", 1000))


def patch_row(num_rounds: int) -> Row:
    """The encoder's value and gradient on patches, against the same pixels as whole pictures."""
    encoder = ResNet(resnet_stages(18, 2), pooled_stem=False)
    pictures = jax.random.normal(jax.random.key(0), (BATCH, SIDE, SIDE, 3))
    patches = cut_patches(pictures, PATCH, STRIDE)
    patches = patches.reshape(-1, PATCH, PATCH, 3)
    count = patches.size // pictures.size * BATCH
    whole = jnp.tile(pictures, (count // BATCH, 1, 1, 1))
    share = patches.size / whole.size  # not quite the same number of pixels
    variables = encoder.init(jax.random.key(1), patches[:1])

    @jax.jit
    def gradient(variables, x):
        def energy(variables):
            z: Any = encoder.apply(variables, x)
            return jnp.square(z).sum()

        return jax.value_and_grad(energy)(variables)

    cases = {
        "patches": lambda: gradient(variables, patches),
        "whole": lambda: gradient(variables, whole),
    }
    timings = measure_rounds(cases, num_rounds, 1)
    pairs = zip(timings["patches"].seconds, timings["whole"].seconds, strict=True)
    ratio = statistics.median(one / other / share for one, other in pairs)
    seconds = statistics.median(timings["patches"].seconds)
    figures = {"times_whole": ratio, "milliseconds_a_picture": 1e3 * seconds / BATCH}
    text = (
        f"{1e3 * seconds / BATCH:.1f} ms a picture in {PATCH}-pixel patches, {ratio:.2f} times "
        "the same pixels whole"
    )
    return Row("patch encoder", figures, text, Target("times_whole", 1.2, at_least=False))
