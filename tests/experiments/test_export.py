"""A run's model in a folder: what is in it, that it is the same model, and what its card says."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic, image_fashion_mnist
from cpc import models
from cpc.train import open_checkpoints
from cpc.types import UserError
from experiments import audio, export, image, launch, run_problem, share


def audio_config():
    config = audio_synthetic.get_config()
    config.data.window_samples = 1280
    config.model.width = config.model.context_width = 8
    config.model.num_offsets = 2
    return config


def image_config():
    config = image_fashion_mnist.get_config()
    config.model.width, config.model.context_width, config.model.context_layers = 8, 8, 1
    config.model.num_offsets = 1
    config.augment.crop = 20
    return config


def write_run(folder, config, module, x, ema=False):
    """A run directory with one checkpoint of random weights; returns these."""
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    variables = draw(module, x)
    params = {"model": variables["params"], "objective": {}}
    state = {"params": params, "extra": {"model": {}, "objective": {}}}
    if ema:
        state["ema"] = params
        state["params"] = jax.tree.map(np.zeros_like, params)
    with open_checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(4, state, {})
        checkpoints.wait()
    return variables


def draw(module, x):
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    return jax.tree.map(lambda leaf: 0.1 * rng.normal(size=leaf.shape).astype("f"), shapes)


@pytest.fixture(scope="module")
def audio_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = audio_config()
    config.data.path = "/home/someone/secret/recordings"
    module = models.module_of(audio.build_model(config.model))
    return folder, write_run(folder, config, module, np.zeros((1, 1280), "f"))


def test_the_exported_model_is_that_of_the_run_to_the_last_bit(audio_run, tmp_path, capsys):
    folder, variables = audio_run
    export.run(str(folder), str(tmp_path / "shared"), None)
    assert capsys.readouterr().out == f"exported: {tmp_path / 'shared'}, step 4\n"
    x = np.random.default_rng(1).normal(size=(2, 1600)).astype("f")
    model = audio.build_model(audio_config().model)
    wanted = jax.jit(model.embed)(variables, x)
    for a, b in zip(models.load(tmp_path / "shared")(x), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    again = models.load_pretrained(tmp_path / "shared")
    assert "W" in again.variables["params"]["predictor"]
    assert again.input["rms"] == 0.05
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == [
        "README.md", "config.json", "model.safetensors",
    ]  # fmt: skip


def test_a_run_is_exported_into_itself_and_loads_by_its_own_name(audio_run):
    folder, variables = audio_run
    export.run(str(folder), None, 4)
    loaded = models.load_pretrained(folder).variables
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)


def test_no_path_of_this_machine_is_shared(audio_run, tmp_path):
    folder, _ = audio_run
    export.run(str(folder), str(tmp_path), None)
    for name in ("config.json", "README.md"):
        text = (tmp_path / name).read_text()
        assert "someone" not in text
        assert "recordings" in text


def test_pictures_and_the_running_average(tmp_path):
    config = image_config()
    module = models.module_of(image.build_model(config, image.choose_offsets(config)))
    x = np.zeros((1, 4, 4, 8, 8, 1), "f")
    variables = write_run(tmp_path / "run", config, module, x, ema=True)
    export.run(str(tmp_path / "run"), None, None)
    again = models.load_pretrained(tmp_path / "run")
    assert again.input == {"kind": "pictures", "shape": [4, 4, 8, 8, 1]}
    jax.tree.map(np.testing.assert_array_equal, again.variables, variables)


def test_the_card_has_the_bound_the_probes_and_code_that_runs(tmp_path):
    config = image_config()
    module = models.module_of(image.build_model(config, image.choose_offsets(config)))
    run = tmp_path / "run"
    write_run(run, config, module, np.zeros((1, 4, 4, 8, 8, 1), "f"))
    common = {"series": "strict", "offsets": [2, 3], "n": [64.0, 64.0], "log_n": [4.16, 4.16]}
    records = [{"step": 2, "nats": 0.5}, {"step": 4, "nats": 1.234}, {"step": 6, "nats": 9.0}]
    lines = [json.dumps({**record, **common}) for record in records]
    (run / "metrics.jsonl").write_text("\n".join([json.dumps({"step": 4}), *lines]))
    (run / "probes").mkdir()
    words = {"task": "classes", "data": "fashion_mnist", "features": "z", "probe": "linear"}
    accuracy = {"accuracy": 0.81234, "low": 0.8, "high": 0.82, "majority": 0.1}
    row = {**words, "unit": "picture", **accuracy}
    (run / "probes" / "classes.json").write_text(json.dumps({"step": 4, "rows": [row]}))
    (run / "probes" / "done.json").write_text(json.dumps({"step": 4, "tasks": []}))
    export.run(str(run), None, None)
    card = (run / "exported" / "README.md").read_text()
    assert "at least 1.23 nats" in card
    assert "offsets 2 to 3 (step 4, N 64, ceiling 4.16 nats)" in card
    wanted = "| classes | fashion_mnist | z | linear | picture | 81.2 | 80.0 | 82.0 | 10.0 | 4 |"
    assert wanted in card
    code = card.split("```python\n")[1].split("```")[0]
    code = code.replace('load("exported")', f'load("{run / "exported"}")')
    names = {"pictures": jnp.zeros((2, 28, 28, 1), jnp.uint8)}
    exec(code, names)
    assert names["z"].shape == (2, 4, 4, 8)
    assert names["c"].shape == (2, 4, 4, 16)  # down and up


@pytest.fixture
def small_run(tmp_path):
    """A run of pictures, with a bound whose last records are damaged."""
    config = image_config()
    module = models.module_of(image.build_model(config, image.choose_offsets(config)))
    run = tmp_path / "run"
    write_run(run, config, module, np.zeros((1, 4, 4, 8, 8, 1), "f"))
    record = {"step": 2, "series": "strict", "offsets": [2], "n": [64.0], "log_n": [4.16]}
    lines = [json.dumps({**record, "nats": 0.5}), json.dumps({**record, "step": 3, "nats": None})]
    (run / "metrics.jsonl").write_text("\n".join([*lines, lines[0][:-9]]))
    return run


def test_damaged_and_null_records_are_passed_over(small_run):
    (small_run / "probes").mkdir()
    (small_run / "probes" / "cut.json").write_text('{"step": 4, "ro')
    row = dict.fromkeys(share.COLUMNS, "x") | {"accuracy": 0.5, "low": None, "majority": 0.1}
    (small_run / "probes" / "whole.json").write_text(json.dumps({"step": 4, "rows": [row]}))
    export.run(str(small_run), None, None)
    card = (small_run / "exported" / "README.md").read_text()
    assert "at least 0.50 nats" in card
    assert "(step 2, N 64" in card
    assert "| x | x | x | x | x | 50.0 | – | – | 10.0 | 4 |" in card


def test_without_a_card_nothing_is_written(small_run, monkeypatch):
    def refuse(*arguments):
        raise ValueError(arguments)

    monkeypatch.setattr(share, "write_card", refuse)
    with pytest.raises(ValueError, match="run"):
        export.run(str(small_run), None, None)
    assert not (small_run / "exported").exists()


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ("run", "run has a config.json of something else: choose another"),
        ("notes", "notes has a README.md of something else: choose another --output"),
        ("file", r"cannot write to .*file .* choose another --output"),
        ("file/deeper", r"cannot write to .*file/deeper .* choose another --output"),
    ],
)
def test_outputs_that_hold_something_else_are_left_alone(small_run, output, match):
    root = small_run.parent
    (root / "notes").mkdir()
    (root / "notes" / "README.md").write_text("mine")
    (root / "file").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}
    with pytest.raises(UserError, match=match):
        export.run(str(small_run), str(root / output), None)
    assert {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))} == before


def test_a_run_that_has_ended_is_exported(small_run, monkeypatch):
    """As `finish` does with the variables in memory: the same folder as by the command."""
    export.run(str(small_run), str(small_run.parent / "shared"), None)
    restored = models.load_pretrained(small_run.parent / "shared")
    config = launch.read_config(small_run)
    config.num_steps, config.probe.tasks = 4, ()
    problem = types.SimpleNamespace(model=image.build_model(config, image.choose_offsets(config)))
    monkeypatch.setattr(run_problem.report, "write_report", lambda workdir: workdir)
    run_problem.finish(config, small_run, problem, restored.variables)
    for name in ("model.safetensors", "config.json"):
        made = (small_run / "exported" / name).read_bytes()
        assert made == (small_run.parent / "shared" / name).read_bytes()
    x = np.random.default_rng(1).normal(size=(2, 4, 4, 8, 8, 1)).astype("f")
    wanted = jax.jit(problem.model.embed)(restored.variables, x)
    for a, b in zip(models.load(small_run)(x), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_without_safetensors_ends_without_an_export(small_run, monkeypatch, capsys):
    config = launch.read_config(small_run)
    config.probe.tasks = ()
    monkeypatch.setattr(run_problem.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(run_problem.report, "write_report", lambda workdir: "page")
    run_problem.finish(config, small_run, types.SimpleNamespace(), {})
    assert capsys.readouterr().out == "report: page\n"
    assert not (small_run / "exported").exists()


def test_the_code_on_an_audio_card_runs(audio_run):
    folder, _ = audio_run
    export.run(str(folder), None, None)
    card = (folder / "exported" / "README.md").read_text()
    assert "No bound was measured" in card
    assert "None was fitted." in card
    code = card.split("```python\n")[1].split("```")[0]
    names = {"x": np.zeros((1, 1600), "f")}
    exec(code.replace('load("exported")', f'load("{folder}")'), names)
    assert names["c"].shape == (1, 10, 8)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"data": {"window_samples": 1280}}, r"no checkpoints: train it first .*experiments.audio"),
        ({"data": {"size": 28}}, r"no checkpoints: train it first .*experiments.image"),
        ({"tasks": 3}, "holds no run on audio or pictures"),
        (None, "is this the directory of a run"),
    ],
)
def test_what_is_no_trained_run(tmp_path, config, match):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=match):
        export.run(str(tmp_path), None, None)


def test_a_step_that_is_not_there(audio_run):
    with pytest.raises(UserError, match="No checkpoint of step 9"):
        export.run(str(audio_run[0]), None, 9)
