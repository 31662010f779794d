"""Images that a run's page shows: nearest neighbours, what excites a unit, augmented patches."""

import functools
import pathlib

import jax
import numpy as np

from cpc.evaluate import most_exciting, nearest
from cpc.files import write_arrays
from cpc.types import Batch
from experiments.command.config import Config
from experiments.command.run_dir import write_latest
from experiments.kinds.image.prepare import prepare
from experiments.training.probes import FeatureSet, ProbeContext

NUM_QUERIES, NUM_NEIGHBOURS, NUM_UNITS, NUM_PATCHES, NUM_AUGMENTED = 8, 8, 8, 12, 8


def save_neighbours(context: ProbeContext, features: FeatureSet) -> tuple[()]:
    """Some test images and the labeled images nearest to them."""
    labelled, test, make = features.values
    gallery, held = make()
    queries = np.arange(0, len(test), max(1, len(test) // NUM_QUERIES))[:NUM_QUERIES]
    k = min(NUM_NEIGHBOURS, len(gallery))
    rows = np.asarray(nearest(gallery, held[queries], k=k).row)
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
    """The patches that excite some units of z most (the paper's Figure 5)."""
    config, _, model, variables, *_ = context
    _, test, _ = features.values
    size = 128

    @jax.jit
    def cut(images):
        return prepare(config, {"x": images}, jax.random.key(0), False)["x"]

    @jax.jit
    def embed(images):
        z = model.embed(variables, cut(images))[0]
        return z.reshape(-1, z.shape[-1])

    starts = range(0, len(test), size)
    top = most_exciting((embed(test.pixels[s : s + size]) for s in starts), NUM_PATCHES)
    units = np.sort(np.argsort(-np.asarray(top.score)[:, 0], kind="stable")[:NUM_UNITS])
    _, i, j, *_ = cut(test.pixels[:1]).shape
    image, place = np.divmod(np.asarray(top.row)[units], i * j)
    patches = [
        [np.asarray(cut(test.pixels[[n]]))[0, p // j, p % j] for n, p in zip(*pair, strict=True)]
        for pair in zip(image, place, strict=True)
    ]
    path = context.workdir / "probes" / "units.npz"
    write_latest(path, context.step, units=units, patches=to_uint8(np.asarray(patches)))
    return ()


def save_augmented(workdir: pathlib.Path, config: Config, batch: Batch) -> None:
    """Write some images' patches as they are, and as training sees them."""
    batch = {name: value[:NUM_AUGMENTED] for name, value in batch.items()}
    rng, own = jax.random.key(0), functools.partial(prepare, config)
    plain, augmented = (
        np.asarray(jax.jit(own, static_argnums=2)(batch, rng, train)["x"])
        for train in (False, True)
    )
    path = workdir / "probes" / "augmented.npz"
    write_arrays(path, plain=to_uint8(plain), augmented=to_uint8(augmented))


def to_uint8(x: np.ndarray) -> np.ndarray:
    """From [-1, 1] to pixels."""
    return np.clip(np.round((x + 1) * 127.5), 0, 255).astype(np.uint8)
