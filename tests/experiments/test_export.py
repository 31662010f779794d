"""Exported runs: files, equality with the run, model card and rejected inputs."""

import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic, image_fashion_mnist
from cpc import models
from cpc.files import plain, write_json
from cpc.results import Score, write_scores
from cpc.train import open_checkpoints
from cpc.types import UserError
from experiments.export import __main__ as export
from experiments.kinds.audio import kind as audio
from experiments.kinds.image import kind as image
from experiments.kinds.registry import read_contrastive
from experiments.training import contrastive
from tests.plans import plan_of


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
    """Write a run directory with one checkpoint of random weights; return the weights."""
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


def draw(module, x, scale=0.1):
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    return jax.tree.map(lambda leaf: scale * rng.normal(size=leaf.shape).astype("f"), shapes)


def test_exported_model_equals_the_run_bit_for_bit(tmp_path, capsys):
    folder, config = tmp_path / "run", audio_config()
    config.data.source, config.data.path = "folder", "/home/someone/secret/recordings"
    module = audio.build_model(config).module
    variables = write_run(folder, config, module, np.zeros((1, 1280), "f"))
    for step, words in (("9", "checkpoint of step 9"), ("last", "the step is 'last'")):
        with pytest.raises(UserError, match=words):
            export.run(str(folder), None, step)
    export.run(str(folder), str(tmp_path / "shared"), "4")
    for name in ("config.json", "README.md"):  # paths are not shared
        text = (tmp_path / "shared" / name).read_text()
        assert "someone" not in text
        assert "recordings" in text
    assert capsys.readouterr().out == f"exported: {tmp_path / 'shared'}, step 4\n"
    x = np.random.default_rng(1).normal(size=(2, 1600)).astype("f")
    model = audio.build_model(audio_config())
    wanted = jax.jit(model.embed)(variables, x)
    again = models.load_pretrained(tmp_path / "shared")
    found = jax.jit(models.make_model(again.module).embed)(again.variables, x)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert "W" in again.variables["params"]["predictor"]
    assert again.input["rms"] == 0.05
    files = {path.name for path in (tmp_path / "shared").iterdir()}
    assert files == {"README.md", "config.json", "model.safetensors"}
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "No bound was measured" in card
    assert "| task |" not in card  # no scores
    names = run_code(card, tmp_path / "shared", {"x": np.zeros((1, 1600), "f")})
    assert names["c"].shape == (1, 10, 8)


@pytest.fixture
def small_run(tmp_path):
    config, run = image_config(), tmp_path / "run"
    module = image.build_model(config).module
    write_run(run, config, module, np.zeros((1, 4, 4, 8, 8, 1), "f"), ema=True)
    record = {"series": "strict", "offsets": [2, 5], "n": [64.0] * 2, "log_n": [4.16] * 2}
    nats = {2: 0.5, 3: 1.234, 4: None, 6: 9.0}
    lines = [json.dumps({"step": step, "bound": [v] * 2, **record}) for step, v in nats.items()]
    (run / "metrics.jsonl").write_text("\n".join([json.dumps({"step": 4}), *lines, lines[0][:-9]]))
    return run


def run_code(card, folder, names):
    code = card.split("```python\n")[1].split("```")[0]
    exec(re.sub(r'load\("\w+"\)', f'load("{folder}")', code), names)
    return names


def test_card_has_bound_scores_and_working_code(small_run):
    accuracy = Score("classes", "fashion_mnist", "image", "z", "linear", "accuracy", 0.81234,
                     low=0.8, high=0.82, chance=0.1, step=4)  # fmt: skip
    rate = Score("words", "news", "utterance", "c", "ctc", "error rate", 0.123,
                 higher_is_better=False, step=4)  # fmt: skip
    write_scores(small_run, [accuracy, rate, rate._replace(step=6, value=0.1)])
    export.run(str(small_run), None, None)
    again = models.load_pretrained(small_run)
    assert again.input == {"kind": "image", "shape": [4, 4, 8, 8, 1]}
    x = np.zeros((1, 4, 4, 8, 8, 1), "f")
    jax.tree.map(np.testing.assert_array_equal, again.variables, draw(again.module, x))  # averaged
    card = (small_run / "exported" / "README.md").read_text()
    for words in (
        "at least 1.23 nats", "offsets 2, 5 (step 3, N 64, ceiling 4.16 nats)",
        "| z | linear | accuracy | 81.2 % | 80.0 % | 82.0 % | 10.0 % | higher | 4 |",
        "| error rate | 12.3 % | – | – | – | lower | 4 |",
    ):  # fmt: skip
        assert words in card
    assert card.count("10.0 %") == 1
    names = run_code(card, small_run, {"images": jnp.zeros((2, 28, 28, 1), jnp.uint8)})
    assert names["z"].shape == (2, 4, 4, 8)
    assert names["c"].shape == (2, 4, 4, 16)  # two directions


@pytest.mark.parametrize(("output", "match"), [
    ("run", "run .*config.json"),
    ("notes", "notes .*README.md"),
    ("file/deeper", r"cannot write to .*file/deeper .* choose another --output"),
])  # fmt: skip
def test_foreign_output_folders_are_not_changed(small_run, output, match, monkeypatch):
    root = small_run.parent
    with monkeypatch.context() as patch:
        patch.setattr(contrastive, "write_card", None)
        with pytest.raises(TypeError):
            export.run(str(small_run), None, None)
    assert not (small_run / "exported").exists(), "without a card nothing is written"
    (root / "notes").mkdir()
    (root / "notes" / "README.md").write_text("mine")
    (root / "file").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}
    with pytest.raises(UserError, match=match):
        export.run(str(small_run), str(root / output), None)
    assert {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))} == before


def test_finished_run_is_exported_automatically(small_run):
    config = read_contrastive(small_run)[1]
    config.num_steps, config.optim.warmup_steps, config.probe.tasks = 4, 0, ()
    write_json(small_run / "config.json", config)
    export.run(str(small_run), str(small_run.parent / "shared"), None)
    restored = models.load_pretrained(small_run.parent / "shared")
    problem = types.SimpleNamespace(model=image.build_model(config), record=lambda _: None)
    kind = types.SimpleNamespace(**{**vars(image), "make_problem": lambda *_: problem})
    work = contrastive.make_work(kind, plan_of(config), None, small_run, None)
    work.finish(restored.variables)
    for name in ("model.safetensors", "config.json"):
        made = (small_run / "exported" / name).read_bytes()
        assert made == (small_run.parent / "shared" / name).read_bytes()
    x = np.random.default_rng(1).normal(size=(2, 4, 4, 8, 8, 1)).astype("f")
    wanted = jax.jit(problem.model.embed)(restored.variables, x)
    for a, b in zip(models.load(small_run)(x), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("config", "match"), [
    (plain(audio_synthetic.get_config()), r"has no checkpoints: .*cpc train"),
    ({"tasks": 3}, "audio, image"), (None, r"config\.json"),
])  # fmt: skip
def test_untrained_runs_are_rejected(tmp_path, config, match):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=match):
        export.run(str(tmp_path), None, None)
