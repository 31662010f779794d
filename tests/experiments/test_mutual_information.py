"""Information experiments: small runs of the three configs, and estimates of known information."""

import contextlib
import functools
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

import configs.mi_consistency
import configs.mi_staircase
import configs.mi_tasks
from cpc.data.images import Images
from cpc.estimators import gaussian_task
from cpc.types import UserError
from experiments import train as command
from experiments.command.config import with_settings
from experiments.information import consistency, estimators, staircase, tasks
from experiments.information import run as runner
from tests.fake_run import untimed_records

BOUNDS = ("info_nce", "interpolated", "ml_cpc", "tuba", "nwj", "flo", "js")


SMALL = {
    staircase: {
        "levels": (1.0, 2.0), "dim": 2, "batch_size": 16, "steps_per_level": 4, "log_every": 2,
        "save_every": 4, "maps": ("cubic",), "critics": ("separable",), "widths": (8,),
        "embedding": 4, "estimators": ("info_nce", "js", "club")},
    tasks: {
        "tasks": ("1v1-normal", "student-identity-1-1-1"), "num_samples": 256, "batch_size": 32,
        "num_steps": 4, "read_every": 2, "estimators": ("info_nce",), "widths": (8,)},
    consistency: {
        "rows": (14, 28), "num_images": 64, "batch_size": 16, "num_steps": 4, "read_every": 2,
        "widths": (8,), "estimators": ("js",)},
}  # fmt: skip


def small(kind, **more):
    card = getattr(configs, f"mi_{kind.__name__.rpartition('.')[2]}")
    return with_settings(card.get_config(), SMALL[kind] | more)


@pytest.fixture
def images(monkeypatch):
    """Replace the images by noise, for which the laws also hold."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 28, 28, 1), np.uint8)
    images = Images(pixels, np.zeros(64, np.int32), ("none",))
    splits = {"train": images, "test": images}
    monkeypatch.setattr(consistency, "load_fashion_mnist", lambda: splits)


@contextlib.contextmanager
def recorded_reads():
    read, get = set(), ConfigDict.__getattr__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigDict, "__getattr__", lambda c, name: read.add(name) or get(c, name))
        yield read


@pytest.fixture(scope="module")
def claimed():
    """Return the claim of every estimator and the keys used for it."""
    with recorded_reads() as read:
        return estimators.claims(configs.mi_staircase.get_config()), read


def run(config, workdir, claimed):
    """Run an experiment, check that it reads all keys, and return its table."""
    with recorded_reads() as read:
        command.run(config, str(workdir))
    assert set(config) - read - claimed[1] <= {"kind"}
    return json.loads((workdir / "table.json").read_text())


@pytest.mark.whole
def test_staircase_whole_run_and_resume(tmp_path, claimed, capsys):
    workdir, parts = tmp_path / "whole", tmp_path / "parts"
    table = run(small(staircase), workdir, claimed)
    assert (workdir / "figures/staircase_cubic.png").exists()
    assert [r["truth"] for r in untimed_records(workdir)] == [1.0, 1.0, 2.0, 2.0]
    pairs = {(c, n) for c in ("exact", "separable") for n in ("info_nce", "js", "smile")}
    readings = {(row["critic"], row["estimator"]) for row in table}
    assert readings == pairs | {("exact", "club"), ("conditional", "club")}
    shutil.copytree(workdir, parts)
    shutil.rmtree(parts / "checkpoints" / "8")
    assert run(small(staircase), parts, claimed) == table
    assert "resuming from step 4" in capsys.readouterr().out
    assert untimed_records(parts) == untimed_records(workdir)


@pytest.mark.whole
def test_tasks_whole_run(tmp_path, claimed):
    table = run(small(tasks), tmp_path, claimed)
    assert [row["task"] for row in table[::3]] == ["1v1-normal-0.75", "student-identity-1-1-1"]
    normal = {row["estimator"]: row for row in table if row["task"].startswith("1v1")}
    for name in ("ksg", "cca"):
        assert normal[name]["value"] == pytest.approx(normal[name]["truth"], abs=0.15)
        assert normal[name]["bias"] == normal[name]["value"] - normal[name]["truth"]
    assert (tmp_path / "figures" / "tasks.png").exists()


@pytest.mark.whole
def test_consistency_whole_run(images, tmp_path, claimed):
    table = run(small(consistency), tmp_path, claimed)
    found = {(row["law"], row["rows"], row["estimator"]): row for row in table}
    laws = ("rows", "processing", "independence")
    assert {*found} == {(a, b, c) for a in laws for b in (14, 28) for c in ("js", "smile")}
    for (law, rows, name), row in found.items():
        base = found["rows", 28 if law == "rows" else rows, name]
        assert row["ratio"] == pytest.approx(row["value"] / base["value"])
    assert (tmp_path / "figures" / "consistency.png").exists()


def test_recorded_units_are_not_measured_again(tmp_path, monkeypatch):
    left, measured = [1], []

    @contextlib.contextmanager
    def stop_on_signals():
        yield lambda: "SIGTERM" if (left.append(left.pop() - 1) or left[0]) < 0 else ""

    def measure(unit):
        measured.append(unit)
        return {"task": unit, "truth": 1.0}

    monkeypatch.setattr(runner, "stop_on_signals", stop_on_signals)
    each = functools.partial(runner.measure_each, tmp_path, "abc", measure, ("task", "truth"))
    assert (each(), measured) == ("SIGTERM", ["a"])
    left[:] = [9]
    assert (each(), measured) == ("", ["a", "b", "c"])
    whole = untimed_records(tmp_path)
    assert [(r["step"], r["task"]) for r in whole] == [(1, "a"), (2, "b"), (3, "c")]
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 3', '"step": 4'))  # damaged
    left[:] = [9]
    assert (each(), measured) == ("", ["a", "b", "c", "c"])
    assert untimed_records(tmp_path) == whole
    kind = types.SimpleNamespace(measure=lambda *_: "SIGTERM", make_table=None)  # has no table
    assert runner.make_work(kind, None, None, tmp_path, None).train() == ("SIGTERM", None)


def test_only_bounds_are_claimed_as_bounds(claimed):
    labels = {name: claim["label"] for name, claim in claimed[0].items()}
    assert {labels.pop(name) for name in BOUNDS} == {"lower bound"}
    assert labels == estimators.LABELS
    assert claimed[0]["info_nce"]["ceiling"] == pytest.approx(np.log(64))
    assert claimed[0]["nwj"]["ceiling"] is None


def test_laws_select_image_rows(monkeypatch):
    """x contains the images and y their top rows."""
    monkeypatch.setattr(consistency, "fit_and_read", lambda config, draw, held_out, rng: held_out)
    pixels = jnp.arange(1.0, 1.0 + 4 * 784).reshape(4, 784)
    which, kept = map(jnp.array, consistency.LAWS["independence"](7, 3))
    fit = jax.jit(lambda *images: consistency.fit_images(None, *images, which, kept, None))
    (x, y), _ = fit(pixels, pixels, pixels)
    x, y = (np.asarray(part).reshape(2, 2, 28, 28) for part in (x, y))
    np.testing.assert_array_equal(x[0, 0].ravel(), pixels[0])
    np.testing.assert_array_equal(x[0, 1].ravel(), pixels[2])
    np.testing.assert_array_equal(y[:, :, :7], x[:, :, :7])
    assert (y[:, :, 7:] == 0).all()
    assert consistency.LAWS["processing"](7, 3) == ((0, 0), (7, 4))


def test_trained_estimates_are_near_the_truth():
    """The truth is 1 nat; only CLUB is an upper bound."""
    config, task = configs.mi_tasks.get_config(), gaussian_task(2, 1.0)
    config.estimators = ("info_nce", "tuba", "flo", "js", "mine", "club")
    config.critics, config.widths, config.embedding = ("separable",), (32,), 16
    config.batch_size, config.learning_rate, config.num_steps = 64, 5e-3, 300
    config.read_every = 100
    held_out = [task.sample(jax.random.key(seed), 64 * 40) for seed in (1, 2)]
    fit = functools.partial(
        estimators.fit_and_read, config, lambda rng: task.sample(rng, 64), held_out
    )
    found = jax.jit(fit)(jax.random.key(0))
    assert len(found) == 7
    for name, value in found.items():
        # CLUB with the exact conditional is d rho^2 / (1 - rho^2) = 2 (e - 1).
        low, high = (2.9, 4.0) if "club" in name else (0.6, 1.12)
        assert low < float(value) < high, f"{name} reads {value}"


def test_estimates_without_bound_are_read_at_the_best_fit(monkeypatch):
    """Upper bounds grow with overfitting; lower bounds may choose their own step."""
    objectives = {"a/club": jnp.array([[-1.0], [-3.0]]), "a/js": jnp.array([[2.0], [1.0]])}
    readings = {name: jnp.array([[1.0], [5.0]]) for name in ("a/club", "a/smile", "a/nwj")}
    watched = (objectives, readings), (objectives, readings)
    monkeypatch.setattr(estimators, "fit_and_watch", lambda *_: watched)
    found = estimators.fit_and_read(None, lambda rng: (rng, rng), [], None)
    assert {name: float(value) for name, value in found.items()} == {
        "a/club": 1.0, "a/smile": 1.0, "a/nwj": 5.0
    }  # fmt: skip


def test_estimates_with_the_exact_critic_are_unbiased():
    task, names = gaussian_task(20, 2.0), ("nwj", "tuba", "flo", "js")
    config = configs.mi_staircase.get_config()
    config.estimators = names

    @jax.jit
    @jax.vmap
    def values(rng):
        return staircase.read_exactly(config, task.log_ratio(*task.sample(rng, 64)))

    found = values(jax.random.split(jax.random.key(0), 400))
    for name in names:
        value = np.asarray(found[f"any/exact/{name}"])
        assert value.mean() == pytest.approx(2.0, abs=4 * float(value.std()) / 20), name


def test_clip_pull_limits_gradients():
    scores = jnp.array([0.5, jnp.inf, -jnp.inf, jnp.nan])
    value, pull = jax.vjp(estimators.clip_pull, scores)
    np.testing.assert_array_equal(value, [0.5, 1e6, -1e6, 0.0])
    pulled = pull(jnp.array([0.25, 1e30, jnp.nan, -jnp.inf]))[0]
    np.testing.assert_array_equal(pulled, [0.25, 1.0, 0.0, -1.0])


@pytest.mark.parametrize(("kind", "key", "value"), [
    (staircase, "maps", ("square",)), (staircase, "maps", ()), (staircase, "levels", (2.0, 99.0)),
    (staircase, "log_every", 3), (staircase, "critics", ("bilinear",)), (staircase, "widths", ()),
    (staircase, "batch_size", 1), (tasks, "num_samples", 60), (tasks, "tasks", ("spherical",)),
    (tasks, "read_every", 3), (consistency, "rows", (14, 29)), (consistency, "rows", (28, 14)),
    (consistency, "processing_rows", 14),
])  # fmt: skip
def test_invalid_settings_are_rejected(kind, key, value):
    with pytest.raises(UserError, match=key):
        runner.interpret(kind, small(kind, **{key: value}))


def test_too_few_images_are_rejected(images):
    with pytest.raises(UserError, match="num_images"):
        consistency.load_images(small(consistency, num_images=40))
