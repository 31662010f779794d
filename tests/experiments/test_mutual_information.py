"""Estimators in training: small forms of the three configs, and what they must find."""

import contextlib
import functools
import io
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

import configs.mi_consistency
import configs.mi_staircase
import configs.mi_tasks
from cpc import train
from cpc.data.images import Images
from cpc.data.sources import fashion_mnist
from cpc.estimators import gaussian_task
from cpc.results.score import read_records
from cpc.types import UserError
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def experiment():
    """The experiment as a module; its flags are parsed, as absl wants."""
    from absl import flags

    from experiments import train as run

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    return run


def small_staircase():
    c = configs.mi_staircase.get_config()
    c.levels, c.dim, c.batch_size = (1.0, 2.0), 3, 16
    c.steps_per_level, c.log_every, c.save_every = 8, 4, 4
    c.maps, c.critics, c.widths, c.embedding = ("cubic",), ("separable",), (8,), 4
    c.estimators = ("info_nce", "tuba", "flo", "js", "mine", "club")
    return c


def small_tasks():
    c = configs.mi_tasks.get_config()
    c.tasks, c.num_samples, c.batch_size = ("1v1-normal", "student-identity-1-1-1"), 256, 32
    c.num_steps, c.read_every, c.estimators = 20, 10, ("info_nce",)
    return c


def small_consistency():
    c = configs.mi_consistency.get_config()
    c.rows, c.num_images, c.batch_size = (14, 28), 256, 16
    c.num_steps, c.read_every, c.widths, c.estimators = 4, 2, (8,), ("info_nce", "js")
    return c


@pytest.fixture
def images(monkeypatch, experiment):
    """Noise for images: the laws hold of it too, and no network is needed."""
    from experiments.information import consistency

    pixels = np.random.default_rng(0).integers(0, 256, (256, 28, 28, 1), np.uint8)
    images = Images(pixels, np.zeros(256, np.int32), ("none",))
    monkeypatch.setattr(
        consistency, "load_fashion_mnist", lambda: {"train": images, "test": images}
    )


def run(experiment, config, workdir):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        experiment.run(config, str(workdir))
    return said.getvalue()


def records(workdir):
    times = ("seconds", "steps_per_second")
    return [{k: v for k, v in r.items() if k not in times} for r in read_records(workdir, [])]


def stop_after(monkeypatch, module, calls):
    """A signal that comes before one of the loop's questions."""
    left = [calls]

    @contextlib.contextmanager
    def stop_on_signals():
        def stop():
            left[0] -= 1
            return "SIGTERM" if left[0] < 0 else ""

        yield stop

    monkeypatch.setattr(module, "stop_on_signals", stop_on_signals)


@pytest.fixture(scope="module")
def staircase(experiment, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "stairs"
    return workdir, run(experiment, small_staircase(), workdir)


@pytest.mark.whole
@pytest.mark.slow
def test_the_staircase_leaves_a_whole_run(staircase):
    workdir, said = staircase
    assert said.splitlines()[-1] == f"report: {workdir / 'report.html'}"
    assert "left" in said
    for name in ("config.json", "environment.json", "figures/staircase_cubic.png"):
        assert (workdir / name).exists(), name
    assert [r["truth"] for r in records(workdir)] == [1.0, 1.0, 2.0, 2.0]
    table = json.loads((workdir / "table.json").read_text())
    readings = {(row["critic"], row["estimator"]) for row in table}
    names = {*small_staircase().estimators, "smile"} - {"club"}
    expected = {("exact", "club"), ("conditional", "club")}
    assert readings == expected | {(c, n) for c in ("exact", "separable") for n in names}
    page = (workdir / "report.html").read_text()
    assert all(row["label"] in page for row in table)


@pytest.mark.slow
def test_what_may_be_claimed(experiment):
    from experiments.information.estimators import claims

    claimed = claims(configs.mi_staircase.get_config())
    label = {name: claim["label"] for name, claim in claimed.items()}
    bounds = ("info_nce", "interpolated", "ml_cpc", "tuba", "nwj", "flo", "js")
    assert {label.pop(name) for name in bounds} == {"lower bound"}
    assert label == {
        "smile": "no bound, on either side",
        "donsker_varadhan": "no bound, biased upwards on a batch",
        "mine": "no bound, biased upwards on a batch",
        "club": "upper bound only if its model holds",
        "ksg": "no bound, no critic",
        "cca": "no bound, no critic",
    }
    assert claimed["info_nce"]["ceiling"] == pytest.approx(np.log(64))
    assert claimed["nwj"]["ceiling"] is None


@pytest.mark.slow
def test_the_staircase_stops_resumes_and_ends_the_same(
    experiment, staircase, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_after(patch, train, 7)
        said = run(experiment, small_staircase(), tmp_path / "parts")
    assert "stopped by SIGTERM; to resume: " in said
    assert not (tmp_path / "parts" / "table.json").exists()
    assert "resuming from step 7" in run(experiment, small_staircase(), tmp_path / "parts")
    assert records(tmp_path / "parts") == records(staircase[0])


@pytest.mark.slow
def test_another_config_in_the_same_directory_is_refused(experiment, staircase):
    config = small_staircase()
    config.dim = 4
    with pytest.raises(UserError, match="dim is 3 there and 4 here"):
        run(experiment, config, staircase[0])


@pytest.mark.slow
def test_the_tasks_stop_resume_and_end_the_same(experiment, tmp_path, monkeypatch):
    from experiments.information import run as runner

    run(experiment, small_tasks(), tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, runner, 1)
        assert "stopped by SIGTERM" in run(experiment, small_tasks(), tmp_path / "parts")
    assert "resuming after 1 of 2" in run(experiment, small_tasks(), tmp_path / "parts")
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text()
    at = lines.rindex('"step": 2')
    (tmp_path / "parts" / "metrics.jsonl").write_text(f'{lines[:at]}"step": 3{lines[at + 9 :]}')
    assert "resuming after 1 of 2" in run(experiment, small_tasks(), tmp_path / "parts")
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    table = json.loads((tmp_path / "whole" / "table.json").read_text())
    assert [row["task"] for row in table[::3]] == ["1v1-normal-0.75", "student-identity-1-1-1"]
    normal = {row["estimator"]: row for row in table if row["task"].startswith("1v1")}
    for name in ("ksg", "cca"):
        assert normal[name]["value"] == pytest.approx(normal[name]["truth"], abs=0.15)
    assert (tmp_path / "whole" / "figures" / "tasks.png").exists()


@pytest.mark.slow
def test_the_laws_leave_a_whole_run(experiment, images, tmp_path):
    run(experiment, small_consistency(), tmp_path)
    table = json.loads((tmp_path / "table.json").read_text())
    assert {(row["law"], row["rows"]) for row in table} == {
        (law, rows) for law in ("rows", "processing", "independence") for rows in (14, 28)
    }
    assert {row["estimator"] for row in table} == {"info_nce", "js", "smile"}
    for row in table:
        base = next(
            r["value"]
            for r in table
            if r["law"] == "rows" and r["estimator"] == row["estimator"]
            and r["rows"] == (28 if row["law"] == "rows" else row["rows"])
        )  # fmt: skip
        assert row["ratio"] == pytest.approx(row["value"] / base)
    assert (tmp_path / "figures" / "consistency.png").exists()
    assert "resuming after 6 of 6" in run(experiment, small_consistency(), tmp_path)


@pytest.mark.slow
def test_pairs_show_the_rows_that_a_law_names(experiment):
    """Left alone, x is the images and y their top rows, each part from its own image."""
    from experiments.information import consistency

    seen = {}

    def keep(config, draw, held_out, rng):
        seen["x"], seen["y"] = held_out[0]
        return {}

    config = small_consistency()
    config.lock()
    pixels = jnp.arange(1.0, 1.0 + 4 * 784).reshape(4, 784)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consistency, "fit_and_read", keep)
        which, kept = consistency.LAWS["independence"](7, 3)
        consistency.fit_images(
            config, pixels, pixels, pixels, jnp.array(which), jnp.array(kept), jax.random.key(0)
        )
    x, y = (np.asarray(part).reshape(2, 2, 28, 28) for part in (seen["x"], seen["y"]))
    np.testing.assert_array_equal(x[0, 0].ravel(), pixels[0])
    np.testing.assert_array_equal(x[0, 1].ravel(), pixels[2])
    np.testing.assert_array_equal(y[:, :, :7], x[:, :, :7])
    assert (y[:, :, 7:] == 0).all()


@pytest.mark.slow
def test_training_finds_a_known_information(experiment):
    """All estimators in one program on 1 nat in 2 dimensions; none but CLUB reads above it."""
    from experiments.information.estimators import fit_and_read

    config, task = configs.mi_tasks.get_config(), gaussian_task(2, 1.0)
    config.estimators = configs.mi_staircase.get_config().estimators
    config.critics, config.widths, config.embedding = ("separable",), (32,), 32
    config.batch_size, config.learning_rate, config.num_steps = 64, 2e-3, 600
    held_out = [task.sample(jax.random.key(seed), 64 * 40) for seed in (1, 2)]
    draw = lambda rng: task.sample(rng, 64)  # noqa: E731
    fit = functools.partial(fit_and_read, config, draw, held_out)
    found = jax.jit(fit)(jax.random.key(0))
    for name, value in found.items():
        # CLUB with the exact conditional reads d rho^2 / (1 - rho^2) = 2 (e - 1).
        low, high = (2.9, 4.0) if "club" in name else (0.6, 1.12)
        assert low < float(value) < high, f"{name} reads {value}"


def test_what_is_no_lower_bound_is_read_where_its_networks_fit_best(experiment, monkeypatch):
    """CLUB grows as its model overfits; a lower bound may be chosen by itself."""
    from experiments.information import estimators

    objectives = {"a/club": jnp.array([[-1.0], [-3.0]]), "a/js": jnp.array([[2.0], [1.0]])}
    readings = {name: jnp.array([[1.0], [5.0]]) for name in ("a/club", "a/smile", "a/nwj")}
    watched = (objectives, readings), (objectives, readings)
    monkeypatch.setattr(estimators, "fit_and_watch", lambda *_: watched)
    found = estimators.fit_and_read(None, lambda rng: (rng, rng), [], None)
    assert {name: float(value) for name, value in found.items()} == {
        "a/club": 1.0, "a/smile": 1.0, "a/nwj": 5.0
    }  # fmt: skip


@pytest.mark.slow
def test_the_exact_critic_reads_the_truth(experiment):
    """NWJ, TUBA, FLO and JS have no bias at their best critics."""
    from experiments.information.staircase import read_exactly

    task = gaussian_task(20, 2.0)
    config = configs.mi_staircase.get_config()

    @jax.jit
    @jax.vmap
    def values(rng):
        return read_exactly(config, task.log_ratio(*task.sample(rng, 64)))

    found = values(jax.random.split(jax.random.key(0), 400))
    for name in ("nwj", "tuba", "flo", "js"):
        value = np.asarray(found[f"any/exact/{name}"])
        assert value.mean() == pytest.approx(2.0, abs=4 * float(value.std()) / 20), name


def test_no_entry_pulls_with_more_than_its_weight(experiment):
    from experiments.information.estimators import clip_pull

    scores = jnp.array([0.5, jnp.inf, -jnp.inf, jnp.nan])
    value, pull = jax.vjp(clip_pull, scores)
    np.testing.assert_array_equal(value, [0.5, 1e6, -1e6, 0.0])
    np.testing.assert_array_equal(
        pull(jnp.array([0.25, 1e30, jnp.nan, -jnp.inf]))[0], [0.25, 1.0, 0.0, -1.0]
    )


@pytest.mark.parametrize(("make", "key", "value"), [
    (small_staircase, "kind", "stairs"),
    (small_staircase, "maps", ("square",)),
    (small_staircase, "maps", ()),
    (small_staircase, "levels", (2.0, 99.0)),
    (small_staircase, "log_every", 5),  # no divisor of steps_per_level
    (small_staircase, "critics", ("bilinear",)),
    (small_staircase, "estimators", ("infonce",)),
    (small_staircase, "widths", ()),
    (small_staircase, "batch_size", 1),
    (small_staircase, "interpolation_weight", 1.5),
    (small_staircase, "smile_clip", 0.0),
    (small_staircase, "seed", -1),
    (small_tasks, "num_samples", 60),  # a quarter must fill a batch
    (small_tasks, "tasks", ("spherical",)),
    (small_tasks, "read_every", 7),  # no divisor of num_steps
    (small_consistency, "rows", (14, 29)),
    (small_consistency, "processing_rows", 14),
    (small_consistency, "num_images", 40),
])  # fmt: skip
def test_a_value_that_cannot_be_meant(experiment, images, tmp_path, make, key, value):
    config = make()
    config[key] = value
    with pytest.raises(UserError, match=key) as caught:
        run(experiment, config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_report_of_an_unfinished_run_is_a_sentence(tmp_path):
    from experiments.information.page import write_information_report

    with pytest.raises(UserError, match=r"has no table\.json"):
        write_information_report(tmp_path)


@pytest.mark.slow
def test_the_command_explains_itself():
    done = commands.run("experiments.train", "--help")
    assert "--config" in done.stdout
    assert "--workdir" in done.stdout


@pytest.mark.slow
@pytest.mark.network
def test_the_laws_on_real_images(experiment, tmp_path):
    """A few steps on Fashion-MNIST, fetched by the project's own command."""
    fashion_mnist.prepare_fashion_mnist(log=lambda line: None)
    run(experiment, small_consistency(), tmp_path)
    assert len(records(tmp_path)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("make", [small_staircase, small_tasks, small_consistency])
def test_every_key_is_read(experiment, images, tmp_path, monkeypatch, make):
    """By its name, and not only by what checks or records the config as a whole."""
    config = make()
    config.estimators = (*config.estimators[:1], "interpolated", "js")
    read = set()
    get = ConfigDict.__getattr__

    def record(self, name):
        read.add(name)
        return get(self, name)

    monkeypatch.setattr(ConfigDict, "__getattr__", record)
    run(experiment, config, tmp_path / "run")
    assert set(config) - read <= {"kind"}
