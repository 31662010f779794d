"""The image experiment: whole run, input checks and probes."""

import contextlib
import itertools
import json
import re
import shutil
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from configs import image_fashion_mnist, image_imagenet_v2
from cpc.data import Images
from cpc.files import read_arrays
from cpc.results import read_scores
from cpc.results.score import read_records
from cpc.types import CPCOutputs, UserError
from experiments.command.config import with_settings
from experiments.command.run_dir import write_latest
from experiments.kinds.image import data as image_data
from experiments.kinds.image import kind as image
from experiments.kinds.image import probes as image_probes
from experiments.kinds.image import sections
from experiments.kinds.image.data import ImageData, cut_split
from experiments.training.contrastive import make_probe
from experiments.training.probes import FeatureSet, ProbeContext
from experiments.training.step import make_loss, make_state
from tests.commands import flags_of, run
from tests.plans import problem_of


@pytest.mark.whole
def test_whole_run_on_photographs(tmp_path):
    rng = np.random.default_rng(0)
    for name, photograph in zip(("temple", "flower"), load_sample_images().images, strict=True):
        for split, count in (("train", 9), ("test", 7)):
            folder = tmp_path / "in" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                top, left = rng.integers(0, 420 - 32), rng.integers(0, 640 - 32)
                crop = Image.fromarray(photograph[top : top + 32, left : left + 32])
                crop.save(folder / f"{i}.{'png' if i % 3 else 'jpeg'}")
    flower, workdir = tmp_path / "in" / "train" / "flower", tmp_path / "run"
    (flower / "cut.jpeg").write_bytes((flower / "0.jpeg").read_bytes()[:200])
    settings = {
        "data.source": "folder", "data.path": tmp_path / "in", "data.split": "train",
        "data.test_split": "test", "data.batch_size": 4, "num_steps": 2, "eval_every": 2,
        "save_every": 100, "log_every": 1, "optim.warmup_steps": 1, "negatives.shards": 1,
        "augment.grey": True, "model.directions": "('left',)", "model.encoder": "small",
        "model.width": 8, "model.context_width": 8, "model.context_layers": 1,
        "model.num_offsets": 2, "evaluate.num_images": 4, "probe.fractions": "(1.0,)",
        "probe.num_epochs": 1, "probe.num_neighbours": 3, "probe.solver": "ridge",
        "probe.features": "('z','random z','pixels')",
        "probe.tasks": "('linear','knn','few_labels','supervised','neighbours','units')",
    }  # fmt: skip
    command = ("experiments.train", "--config=configs/image_cifar10.py", f"--workdir={workdir}")
    run(*command, *flags_of(settings))
    assert (workdir / "report.html").exists()
    assert "cut.jpeg" in (workdir / "skipped.txt").read_text()
    records = read_records(workdir, [])
    assert all(np.isfinite(record["loss"]) for record in records if "loss" in record)
    strict = [record for record in records if record.get("series") == "strict"][-1]
    assert (strict["is_bound"], strict["n"], strict["offsets"]) == (True, [4, 4], [2, 3])
    audit = json.loads((workdir / "audit.json").read_text())
    assert "accidental_hits" in [row["name"] for row in audit["rows"]]
    assert not [*workdir.glob("probes/networks*")]  # removed after its scores were written
    features = ("z", "random z", "pixels")
    assert {(one.task, one.features, one.method) for one in read_scores(workdir)} == {
        ("classes", "supervised", "whole network"),
        *(("classes", name, method) for name in features for method in ("linear", "knn")),
        *(("few_labels", name, "frozen") for name in features),
    }
    for figure in ("neighbours", "units", "augmented", "bound"):
        assert (workdir / "figures" / f"{figure}.png").stat().st_size > 1000


def test_large_config_has_a_loss_per_offset():
    few = {"data.batch_size": 8, "negatives.shards": 1, "model.stages": 1}
    config = with_settings(image_imagenet_v2.get_config(), few)
    pixels = np.zeros((8, config.data.size, config.data.size, 3), np.uint8)
    images = Images(pixels, np.arange(8, dtype=np.int32) % 2, ("a", "b"))
    problem = problem_of(config, ImageData(images, images, images))
    loss, tx = make_loss(problem), optax.identity()
    metrics = jax.eval_shape(lambda: make_state(problem, loss, tx).metrics)
    number = len(config.model.directions) * config.model.num_offsets * config.model.modules
    assert metrics["offsets"].n.shape == (number,)


def make_config(**options):
    named = {key.replace("__", "."): value for key, value in options.items()}
    return with_settings(image_fashion_mnist.get_config(), named)


def image_set(labels, size=28, names=("hat", "shoe")):
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), size, size, 1), np.uint8)
    return Images(pixels, np.array(labels, np.int32), names)


@pytest.mark.parametrize(("labels", "options", "sentence"), [
    ([1, -1, 1], {}, "class 'shoe', but knn, linear need two"),
    ([-1, -1, -1], {}, "has no labels"),
    ([0, *[1] * 30], {"probe__num_images": 2}, "(2) have the class 'shoe'"),
    ([0, 1, 1], {"probe__regions": 7}, "probe.regions is 7: an image has 6 by 6"),
])  # fmt: skip
def test_images_unsuitable_for_probes_are_rejected(labels, options, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        image_probes.check_data(make_config(**options), ImageData(*[image_set(labels)] * 3))


def test_test_classes_without_training_labels_are_rejected(capsys):
    names = ("cat", "dog", "hat", "shoe")
    cats, hats, some, known = (
        image_set(labels, names=names) for labels in ([0, 1, 1], [2, 3, -1], [2, 1, -1], [0, 0, 1])
    )
    refused = r"2 test images .*\(got hat, shoe; training has cat, dog\): choose"
    with pytest.raises(UserError, match=refused):
        image_probes.check_data(make_config(), ImageData(cats, cats, hats))
    image_probes.check_data(make_config(probe__tasks=("units",)), ImageData(cats, cats, hats))
    image_probes.check_data(make_config(), ImageData(cats, cats, known))
    assert not capsys.readouterr().out
    image_probes.check_data(make_config(), ImageData(cats, cats, some))
    said = capsys.readouterr().out
    assert "1 of 2 test images have labels that do not occur in training (hat)" in said


@pytest.mark.parametrize(("asked", "batches"), [(512, 2), (4, 1), (5, 2)])
def test_evaluation_uses_each_image_once(asked, batches):
    config = make_config(data__batch_size=4, evaluate__num_images=asked)
    held_out = problem_of(config, ImageData(*[image_set([0, 1] * 5 + [1])] * 3)).held_out
    drawn = [held_out.draw(step)["image"].tolist() for step in range(held_out.number)]
    assert len(drawn) == batches
    assert len(np.unique(drawn)) == 4 * batches


def test_unlabelled_images_have_no_group():
    z = jnp.zeros((4, 2, 2, 3))
    batch = {"sequence": jnp.arange(4), "label": jnp.array([-1, 0, -1, 0])}
    (direction,) = image.split_branches([CPCOutputs(z, z, z[..., None, :])], batch)
    groups = np.ravel(direction.positions.group)
    assert groups[1] == groups[3] == 0
    assert len(set(groups.tolist())) == 3
    assert (groups[[0, 2]] < 0).all()


@pytest.mark.parametrize(("text", "rows"), [
    ("train", range(10)), ("train[:7]", range(7)), ("train[90%:]", [9]), ("train[-2:]", [8, 9]),
    ("train[20%:5]", [2, 3, 4]), ("valid", None), ("train[a:b]", None), ("train[3]", None),
])  # fmt: skip
def test_split_slices(text, rows):
    splits = {"train": image_set(range(10), 2, ("a",) * 10)}
    if rows is not None:
        assert cut_split(splits, text).labels.tolist() == list(rows)
        return
    with pytest.raises(UserError, match=r"fashion_mnist .*split"):
        cut_split(splits, text)


KNOWN_TO_PROBES = r"\(train\[200:\]\) shares images with data\.probe_split"
KNOWN_TO_NETWORK = r"shares images with data\.split \(train\)"


@pytest.mark.parametrize(("splits", "options", "sentence"), [
    (("train", "train", "test"), {}, None),
    (("train[:200]", "train[:50%]", "train[200:]"), {}, None),
    (("test", "train[:201]", "train[200:]"), {}, KNOWN_TO_PROBES),
    (("test", "train[:-1]", "train[200:]"), {"evaluate__num_images": 0}, KNOWN_TO_PROBES),
    (("test", "train[:-1]", "train[200:]"), {"probe__tasks": ()}, None),
    (("train", "train[:200]", "train[200:]"), {}, KNOWN_TO_NETWORK),
    (("train", "test", "train"), {"probe__tasks": ()}, KNOWN_TO_NETWORK),
    (("train",) * 3, {"probe__tasks": (), "evaluate__num_images": 0}, None),
])  # fmt: skip
def test_overlapping_splits_are_rejected(splits, options, sentence, monkeypatch):
    sets = {"train": image_set([0, 1] * 200), "test": image_set([0, 1] * 30)}
    monkeypatch.setattr(image_data, "load_fashion_mnist", lambda log: sets)
    names = ("data__split", "data__probe_split", "data__test_split")
    config = make_config(**dict(zip(names, splits, strict=True)), **options)
    refused = pytest.raises(UserError, match=sentence) if sentence else contextlib.nullcontext()
    with refused:
        image_data.load_data(config, str)


@pytest.fixture
def shared(tmp_path):
    """Write a folder in which test/ repeats images of train/ in another format."""
    for split, numbers, ending in (("train", range(6), "png"), ("test", range(4, 8), "bmp")):
        for label in ("cat", "dog"):
            place = tmp_path / split / label
            place.mkdir(parents=True)
            for number in numbers:
                rng = np.random.default_rng((number, label == "cat"))
                image = Image.fromarray(rng.integers(0, 256, (28, 28), np.uint8))
                image.save(place / f"{split}{number}.{ending}")
    return tmp_path


@pytest.mark.parametrize("memory_bytes", [10**9, 0])
def test_training_copies_of_test_images_are_skipped(shared, memory_bytes, monkeypatch):
    monkeypatch.setattr("cpc.data.images.MEMORY_BYTES", memory_bytes)
    monkeypatch.setenv("CPC_DATA", str(shared / "c"))
    config, said = make_config(data__source="folder", data__path=str(shared)), []
    for _ in range(2):  # the second load uses the cache
        loaded = image_data.load_data(config, said.append)
        assert [len(part) for part in loaded[:3]] == [8, 8, 8]
        names = {name.rsplit("/", 1)[1] for name, _ in loaded.skipped}
        assert names == {"train4.png", "train5.png"}
        assert "4 skipped (train4.png" in said[-1]
        assert "4 of them copies" in said[-1]
    config.probe.tasks, config.evaluate.num_images = (), 0
    assert len(image_data.load_data(config, str).train) == 12, "without a test, copies may train"


def test_shared_folders_are_rejected(shared):
    own = {"data__source": "folder", "data__path": str(shared)}
    with pytest.raises(UserError, match=r"\(test\) shares images with data\.probe_split"):
        image_data.load_data(make_config(**own, data__probe_split="test"), str)
    shutil.rmtree(shared / "train")
    shutil.copytree(shared / "test", shared / "train")
    with pytest.raises(UserError, match=r"all 8 images of data\.probe_split .* are copies"):
        image_data.load_data(make_config(**own), str)


def test_pooling_over_regions():
    grid = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    assert image_probes.pool(grid, 1).tolist() == [[7.5]]
    assert image_probes.pool(grid, 2).tolist() == [[2.5, 4.5, 10.5, 12.5]]


@pytest.mark.parametrize(("task", "num_classes"), [("linear", 7), ("knn", 7), ("knn", 5)])
def test_top_5_accuracy_needs_more_than_five_classes(task, num_classes):
    """Features confuse neighbouring classes: top-1 is often wrong, top-5 is not."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, 70)
    images = image_set(labels, 2, tuple("abcdefg"[:num_classes]))
    x = np.eye(num_classes)[(labels + rng.integers(0, 2, 70)) % num_classes].astype(np.float32)
    config = make_config(probe__tasks=(task,), probe__features=("z",), probe__solver="ridge")
    data = ImageData(*[images] * 3)
    (probe,) = image_probes.probe_tasks(config, data)
    context: Any = ProbeContext(config, data, *[None] * 5)
    scores = list(probe.answer(context, FeatureSet("z", (images, images, lambda: (x, x)))))
    values = {score.metric: score.value for score in scores}
    assert values["accuracy"] < 0.8
    assert ("top-5 accuracy" in values) == (num_classes > 5)
    assert values.get("top-5 accuracy", 1.0) > 0.95


@pytest.mark.parametrize("solver", ["sgd", "ridge"])
def test_few_labels_use_at_least_one_per_class(solver, tmp_path, monkeypatch):
    embed = mock.Mock(wraps=image_probes.evaluate.embed_images)
    monkeypatch.setattr(image_probes.evaluate, "embed_images", embed)
    config = make_config(probe__solver=solver, probe__features=("pixels",))
    config.probe.fractions = (0.1, 1.0)
    nothing: Any = None
    data, scores = ImageData(*[image_set([0, 1] * 5)] * 3), []
    for config.probe.tasks, num_sets in (((), 0), (("knn", "few_labels"), 2)):
        scores = make_probe(image, config, tmp_path, data, nothing)(None, 10)
        assert embed.call_count == num_sets, "features are computed once per set of images"
    settings = [score.setting for score in scores if score.task == "few_labels"]
    note = "" if solver == "ridge" else "l2 1, "
    assert settings == [f"{note}10 % of the labels", "100 % of the labels"]
    assert len(read_scores(tmp_path)) == 3


def test_unit_figure_searches_all_images_and_keeps_the_latest_step(tmp_path, monkeypatch):
    """The brightest of 130 images is the last, beyond the first 128."""
    test = Images(np.full((130, 2, 2, 1), 10, np.uint8), np.zeros(130, np.int32), ("a",))
    test.pixels[-1] = 250
    preprocess = lambda c, batch, *_: {"x": jnp.float32(batch["x"])[:, None, None] / 127.5 - 1}  # noqa: E731
    monkeypatch.setattr(sections, "preprocess", preprocess)
    model: Any = mock.Mock(embed=lambda _, patches: (patches.mean((3, 4)), None))
    context = ProbeContext(None, None, model, {}, tmp_path, 1, tmp_path.joinpath)
    sections.save_units(context, FeatureSet("z", (None, test, None)))
    path = tmp_path / "probes" / "units.npz"
    assert read_arrays(path)["patches"][0, 0].max() == 250
    for step, value, kept in ((20, 1, 1), (40, 2, 2), (30, 3, 2), (40, 4, 4)):
        write_latest(path, step, units=np.array([value]))
        assert read_arrays(path)["units"] == [kept]


@pytest.mark.parametrize("test_split", ["train", "test"])
def test_groups_are_not_divided_between_splits(tmp_path, test_split):
    placed = itertools.product(enumerate("abcdef"), ("cat", "dog"), ("train", "test", "one"))
    for (index, subject), kind, split in placed:
        if split == "train" or (split == "test" and subject in "ab") or subject == "a":
            folder = tmp_path / split / kind / subject
            folder.mkdir(parents=True)
            shade = 20 * index + 5 * (kind == "cat") + len(split)
            Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(folder / "x.png")
    given = {"source": "folder", "path": str(tmp_path), "size": 8, "channels": 3, "group_level": 3,
             "test_split": test_split, "test_fraction": 0.3}  # fmt: skip
    config, tested = make_config(**{f"data__{key}": value for key, value in given.items()}), set()
    for config.seed in range(6):
        found = image_data.load_data(config, str)
        train, probe, test = (set((part.pixels[:, 0, 0, 0] // 20).tolist()) for part in found[:3])
        assert train == probe == set(range(6)) - test
        assert (len(test), len(found.train)) == (2, 8)
        tested |= test
    assert tested == {0, 1} or (test_split == "train" and len(tested) > 2)
    config.data.group_level = 4
    with pytest.raises(UserError, match=r"data\.group_level is 4"):
        image_data.load_data(config, str)
    config.data.update(group_level=3, split="one", probe_split="one", test_split="one")
    with pytest.raises(UserError, match="all images are in the test groups"):
        image_data.load_data(config, str)
