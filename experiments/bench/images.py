"""Pictures: the step, how fast they are fed, what patches cost the encoder, and a probe's fit."""

import functools
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

from configs import image_fashion_mnist
from cpc.data import Images, make_image_batches, prefetch, read_image_folder
from cpc.data.augment import cut_patches
from cpc.evaluate import fit_lbfgs_probe
from cpc.models import ResNet, resnet_stages
from cpc.train import put_batch
from experiments.bench.step import fractions_of_peak, measure_rounds, time_call
from experiments.bench.table import Row, Target
from experiments.kinds.image import kind as image
from experiments.kinds.image.data import ImageData
from experiments.training import step as training
from experiments.training.contrastive import interpret

FILE_PIXELS = 256
#: Pictures of 64 pixels in 7x7 patches of 16, against as many pixels whole.
SIDE, PATCH, STRIDE = 64, 16, 8


def image_rows(
    mesh: jax.sharding.Mesh, num_batches: int, num_rounds: int, num_images: int
) -> list[Row]:
    """The step, feeding small images and JPEG files, encoding patches, fitting a probe."""
    return [
        step_row(mesh, num_rounds, 8 * num_images),
        small_row(num_batches),
        jpeg_row(32 * num_images),
        patch_row(num_rounds, num_images),
        probe_row(num_rounds),
    ]


def step_row(mesh: jax.sharding.Mesh, num_rounds: int, batch_size: int) -> Row:
    """The whole step of configs/image_fashion_mnist.py, on images that are made up."""
    config = image_fashion_mnist.get_config()
    config.data.batch_size = batch_size
    config.evaluate.num_images = 0
    images = make_images(4 * batch_size)
    data = ImageData(images, images, images)
    problem = image.make_problem(interpret(image, config), data)
    state, step, _ = training.make_step(problem, mesh)
    batch = put_batch(problem.draw(0), mesh)

    def advance():
        nonlocal state
        state = step(state, batch)
        return state.step

    timing = measure_rounds({"step": advance}, num_rounds, 3)["step"]
    seconds = statistics.median(timing.seconds)
    rate = batch_size / seconds
    figures = {"milliseconds": 1e3 * seconds, "images_per_second": rate}
    text = f"{1e3 * seconds:.1f} ms, {rate:,.0f} images/s"
    return Row("whole step of small images", figures, text)


def probe_row(num_rounds: int) -> Row:
    """A linear probe of 10 classes fitted by L-BFGS to 10,000 rows of 128 features."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((10_000, 128), np.float32)
    classes = (features @ rng.standard_normal((128, 10), np.float32)).argmax(1).astype(np.int32)
    fit = functools.partial(fit_lbfgs_probe, features, classes, num_classes=10, l2s=(1e-3,))
    seconds = statistics.median([time_call(fit) for _ in range(num_rounds + 1)][1:])
    return Row("linear probe, 10,000 by 128", {"seconds": seconds}, f"{seconds:.2f} s by L-BFGS")


def make_images(count: int) -> Images:
    """As those of Fashion-MNIST."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28, 1), np.uint8)
    return Images(pixels, np.zeros(count, np.int32), ("one",))


def small_row(num_batches: int) -> Row:
    """Pictures of the size and number of Fashion-MNIST, through the training's own pipeline."""
    images = make_images(60_000)
    draw = make_image_batches(images, batch_size=256, seed=0)
    batches = prefetch(draw, 0, num_batches + 1, num_threads=2)
    next(batches)  # the threads have started
    begin = time.perf_counter()
    for _ in batches:
        pass
    rate = 256 * num_batches / (time.perf_counter() - begin)
    text = f"{rate:,.0f} images/s of 28 by 28 pixels"
    figures = {"images_per_second": rate}
    return Row("image pipeline", figures, text, Target("images_per_second", 20_000))


def jpeg_row(num_files: int) -> Row:
    """JPEG files decoded by the folder reader on threads, against the decoder alone on as many."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        (root / "train" / "one").mkdir(parents=True)
        rng, photographs = np.random.default_rng(0), load_sample_images().images
        paths = [root / "train" / "one" / f"{i}.jpeg" for i in range(num_files)]
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
        alone = num_files / (time.perf_counter() - begin)
        begin = time.perf_counter()
        read_image_folder(root, "train", log=lambda line: None)
        rate = num_files / (time.perf_counter() - begin)
    figures = {
        "images_per_second": rate,
        "decoder_images_per_second": alone,
        "share_of_decoder": rate / alone,
    }
    text = f"{rate:,.0f} images/s, {rate / alone:.2f} of the decoder alone"
    return Row("JPEG files of 256 pixels", figures, text, Target("images_per_second", 1000))


def patch_row(num_rounds: int, num_images: int) -> Row:
    """The encoder's value and gradient on patches, against the same pixels as whole images."""
    encoder = ResNet(resnet_stages(18, 2), pooled_stem=False)
    images = jax.random.normal(jax.random.key(0), (num_images, SIDE, SIDE, 3))
    patches = cut_patches(images, PATCH, STRIDE)
    patches = patches.reshape(-1, PATCH, PATCH, 3)
    whole = jnp.tile(images, (patches.size // images.size, 1, 1, 1))
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
    milliseconds = 1e3 * seconds / num_images
    figures = {"times_whole": ratio, "milliseconds_an_image": milliseconds}
    text = (
        f"{milliseconds:.1f} ms an image in {PATCH}-pixel patches, {ratio:.2f} times the same "
        "pixels whole"
    )
    # Nothing loops, so that the compiler counts all of it; that of some devices counts nothing.
    cost: Any = gradient.lower(variables, patches).cost_analysis()
    if cost:
        gflop = cost["flops"] / num_images / 1e9
        fraction = statistics.median(fractions_of_peak(cost["flops"], timings["patches"]))
        figures |= {"gflop_an_image": gflop, "fraction_of_peak": fraction}
        text += f"; {gflop:.2f} GFLOP, {fraction:.2f} of peak"
    return Row("patch encoder", figures, text, Target("times_whole", 1.2, at_least=False))
