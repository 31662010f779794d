"""Report page sections for image runs: neighbors, units, augmentation, the paper's results."""

import functools
import pathlib

import jax
import numpy as np

from cpc.evaluate import most_exciting, nearest
from cpc.files import read_arrays, write_arrays
from cpc.report.engine import Figure, Section, Table
from cpc.report.words import Words
from cpc.results import Run
from cpc.types import Batch, UserError
from experiments.command.config import Config
from experiments.command.run_dir import write_latest
from experiments.kinds.image.data import preprocess
from experiments.kinds.paper import IMAGENET, IMAGENET_SOURCE
from experiments.training.probes import FeatureSet, ProbeContext
from experiments.training.problem import Page

NUM_QUERIES, NUM_NEIGHBOURS, NUM_UNITS, NUM_PATCHES, NUM_AUGMENTED = 8, 8, 8, 12, 8


def save_neighbours(context: ProbeContext, features: FeatureSet) -> tuple[()]:
    """Write some test images and the nearest labeled images to probes/neighbours.npz."""
    labelled, test, make = features.values
    gallery, held_out = make()
    queries = np.arange(0, len(test), max(1, len(test) // NUM_QUERIES))[:NUM_QUERIES]
    k = min(NUM_NEIGHBOURS, len(gallery))
    rows = np.asarray(nearest(gallery, held_out[queries], k=k).row)
    write_latest(
        context.workdir / "probes" / "neighbours.npz",
        context.step,
        queries=test.pixels[queries],
        neighbours=np.stack([labelled.pixels[row] for row in rows]),
        query_labels=test.labels[queries],
        neighbour_labels=labelled.labels[rows],
        class_names=np.asarray(test.class_names),
    )
    return ()


def save_units(context: ProbeContext, features: FeatureSet) -> tuple[()]:
    """Write the patches with the largest values of some units of z to probes/units.npz."""
    config, _, model, variables, *_ = context
    _, test, _ = features.values
    size = 128

    @jax.jit
    def cut(images):
        return preprocess(config, {"x": images}, jax.random.key(0), False)["x"]

    @jax.jit
    def embed(images):
        z = model.embed(variables, cut(images))[0]
        return z.reshape(-1, z.shape[-1])

    starts = range(0, len(test), size)
    top = most_exciting((embed(test.pixels[s : s + size]) for s in starts), NUM_PATCHES)
    units = np.sort(np.argsort(-np.asarray(top.score)[:, 0], kind="stable")[:NUM_UNITS])
    _, i, j, *_ = cut(test.pixels[:1]).shape
    image, patch = np.divmod(np.asarray(top.row)[units], i * j)
    patches = [
        [np.asarray(cut(test.pixels[[n]]))[0, p // j, p % j] for n, p in zip(*pair, strict=True)]
        for pair in zip(image, patch, strict=True)
    ]
    path = context.workdir / "probes" / "units.npz"
    write_latest(path, context.step, units=units, patches=to_uint8(np.asarray(patches)))
    return ()


def save_augmented(workdir: pathlib.Path, config: Config, batch: Batch) -> None:
    """Write patches of some images, with and without augmentation, to probes/augmented.npz."""
    batch = {name: value[:NUM_AUGMENTED] for name, value in batch.items()}
    rng, own = jax.random.key(0), functools.partial(preprocess, config)
    plain, augmented = (
        np.asarray(jax.jit(own, static_argnums=2)(batch, rng, train)["x"])
        for train in (False, True)
    )
    path = workdir / "probes" / "augmented.npz"
    write_arrays(path, plain=to_uint8(plain), augmented=to_uint8(augmented))


def to_uint8(x: np.ndarray) -> np.ndarray:
    """Convert values in [-1, 1] to uint8 pixels."""
    return np.clip(np.round((x + 1) * 127.5), 0, 255).astype(np.uint8)


WORDS = Words(
    examples="images",
    sequence="image",
    group="class",
    ahead="rows ahead",
    tested="images",
    features=("z", "c"),  # the paper probes the output of the encoder
    baselines=("pixels",),
    titles={"pixels": "raw pixels"},
)
#: Titles and captions of the figures, keyed by file name in probes/.
CAPTIONS = {
    "neighbours": (
        "Nearest neighbors",
        "Left: test images. Right: the labeled images whose z, pooled over the grid, has the "
        "largest cosine similarity, nearest first. Green frames mark images of the same class; red "
        "frames mark images of another class, with its name below.",
    ),
    "units": (
        "Patches that excite a unit most (the paper's Figure 5)",
        "Each row is one dimension of z with the patches of test images at which it is largest, "
        "strongest first. A trained unit should respond to one kind of content.",
    ),
    "augmented": (
        "Patches in training",
        "The overlapping patches of some training images, above without and below with the "
        "augmentation of training. Images that people cannot recognize are augmented too much.",
    ),
}


def paper_section(run: Run) -> Section | None:
    """Return a section with the paper's ImageNet probes and a note on comparing runs with them."""
    if not len(run.scores):
        return None
    note = (
        "The paper probes features of ImageNet, so accuracies on other images are not comparable. "
        "CPC should exceed the untrained network and raw pixels, and more so with few labels. CPC "
        "v2 reaches the accuracy of a network trained from pixels with 2 to 5 times fewer labels."
    )
    return Section("Comparison with the paper", [note], details=[imagenet_table()])


def images_section(run: Run) -> Section:
    """Return a section with recorded figures and the names of missing ones."""
    from experiments.kinds.image.figures import DRAW  # slow: it imports matplotlib

    figures, problems, absent = [], [], []
    for name, (title, caption) in CAPTIONS.items():
        path = run.workdir / "probes" / f"{name}.npz"
        if not path.exists():
            absent.append(f"probes/{name}.npz")
            continue
        try:
            arrays = read_arrays(path)
        except UserError as error:
            problems.append(f"A figure is missing: {error}; fit the probes again.")
            continue
        figures.append(Figure(name, DRAW[name](arrays), title, caption))
    if absent:
        problems.append(
            f"Not recorded yet: {', '.join(absent)}; cpc probe on this directory adds the figures "
            "in probe.tasks."
        )
    return Section("Images", problems, figures)


def imagenet_table() -> Table:
    """Return a table of the paper's linear probes on ImageNet."""
    import pandas as pd

    rows = pd.DataFrame(IMAGENET, columns=["method", "network", "top-1, %", "top-5, %"])
    return Table(
        "The paper's linear probes of ImageNet",
        rows,
        f"{IMAGENET_SOURCE}. A dash marks a value that was not reported.",
        {"top-1, %": ".1f", "top-5, %": ".1f"},
    )


PAGE = Page(
    words=WORDS,
    use="""from cpc import models

embed = models.load("{folder}")
# images: (b, y, x, channels), uint8 or floats in 0..1, or a list of images of any size
z, c = embed(images)  # both over the grid of patches: (b, i, j, width)""",
    sections=(paper_section, images_section),
)
