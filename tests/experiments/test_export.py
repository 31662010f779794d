"""A run's model in a folder: what is in it, that it is the same model, and what its card says."""

import json
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
from experiments.training import contrastive as share
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
    config.data.source, config.data.path = "folder", "/home/someone/secret/recordings"
    module = audio.build_model(config).module
    return folder, write_run(folder, config, module, np.zeros((1, 1280), "f"))


def test_the_exported_model_is_that_of_the_run_to_the_last_bit(audio_run, tmp_path, capsys):
    folder, variables = audio_run
    for step, words in (("9", "No checkpoint of step 9"), ("last", "--step is 'last'")):
        with pytest.raises(UserError, match=words):
            export.run(str(folder), None, step)
    export.run(str(folder), str(tmp_path / "shared"), "4")
    for name in ("config.json", "README.md"):  # no path of this machine is shared
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
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == [
        "README.md", "config.json", "model.safetensors",
    ]  # fmt: skip


def test_the_card_has_the_bound_the_probes_and_code_that_runs(tmp_path):
    config = image_config()
    module = image.build_model(config).module
    run = tmp_path / "run"
    variables = write_run(run, config, module, np.zeros((1, 4, 4, 8, 8, 1), "f"), ema=True)
    common = {"series": "strict", "offsets": [2, 5], "n": [64.0, 64.0], "log_n": [4.16, 4.16]}
    nats = {2: 0.5, 4: 1.234, 6: 9.0}
    records = [{"step": step, "bound": [value] * 2} for step, value in nats.items()]
    lines = [json.dumps({**record, **common}) for record in records]
    (run / "metrics.jsonl").write_text("\n".join([json.dumps({"step": 4}), *lines]))
    question = ("classes", "fashion_mnist", "image", "z", "linear", "accuracy")
    write_scores(run, [Score(*question, 0.81234, low=0.8, high=0.82, chance=0.1, step=4)])
    export.run(str(run), None, None)
    again = models.load_pretrained(run)
    assert again.input == {"kind": "image", "shape": [4, 4, 8, 8, 1]}
    jax.tree.map(np.testing.assert_array_equal, again.variables, variables)  # the average
    card = (run / "exported" / "README.md").read_text()
    assert "at least 1.23 nats" in card
    assert "offsets 2, 5 (step 4, N 64, ceiling 4.16 nats)" in card
    question = "| classes | fashion_mnist | image | z | linear | accuracy "
    assert f"{question}| 81.2 % | 80.0 % | 82.0 % | 10.0 % | higher | 4 |" in card
    code = card.split("```python\n")[1].split("```")[0]
    code = code.replace('load("exported")', f'load("{run / "exported"}")')
    names = {"images": jnp.zeros((2, 28, 28, 1), jnp.uint8)}
    exec(code, names)
    assert names["z"].shape == (2, 4, 4, 8)
    assert names["c"].shape == (2, 4, 4, 16)  # down and up


@pytest.fixture
def small_run(tmp_path):
    """A run of images, with a bound whose last records are damaged."""
    config = image_config()
    module = image.build_model(config).module
    run = tmp_path / "run"
    write_run(run, config, module, np.zeros((1, 4, 4, 8, 8, 1), "f"))
    record = {"step": 2, "series": "strict", "offsets": [2], "n": [64.0], "log_n": [4.16]}
    lines = [
        json.dumps({**record, "bound": [0.5]}),
        json.dumps({**record, "step": 3, "bound": [None]}),
    ]
    (run / "metrics.jsonl").write_text("\n".join([*lines, lines[0][:-9]]))
    return run


def test_the_card_of_damaged_records_and_of_an_error_rate(small_run):
    """Lower is better, and there is no chance level; what is damaged or null is passed over."""
    rate = Score("words", "news", "utterance", "c", "ctc", "error rate", 0.123, 0.11, 0.14,
                 higher_is_better=False, step=4)  # fmt: skip
    later = rate._replace(step=6, value=0.1)  # than what is exported
    plain = Score(*"xxxxx", "accuracy", 0.5, None, None, chance=0.1, step=4)
    write_scores(small_run, [rate, later, plain])
    export.run(str(small_run), None, None)
    card = (small_run / "exported" / "README.md").read_text()
    assert all(word in card for word in ("at least 0.50 nats", "(step 2, N 64"))
    assert "| x | x | x | x | x | accuracy | 50.0 % | – | – | 10.0 % | higher | 4 |" in card
    assert "| error rate | 12.3 % | 11.0 % | 14.0 % | – | lower | 4 |" in card
    assert card.count("10.0 %") == 1


def test_without_a_card_nothing_is_written(small_run, monkeypatch):
    def refuse(*arguments):
        raise ValueError(arguments)

    monkeypatch.setattr(share, "write_card", refuse)
    with pytest.raises(ValueError, match="run"):
        export.run(str(small_run), None, None)
    assert not (small_run / "exported").exists()


@pytest.mark.parametrize(("output", "match"), [
    ("run", "run has a config.json of something else"),
    ("notes", "notes has a README.md of something else"),
    ("file/deeper", r"cannot write to .*file/deeper .* choose another --output"),
])  # fmt: skip
def test_outputs_that_hold_something_else_are_left_alone(small_run, output, match):
    root = small_run.parent
    (root / "notes").mkdir()
    (root / "notes" / "README.md").write_text("mine")
    (root / "file").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}
    with pytest.raises(UserError, match=match):
        export.run(str(small_run), str(root / output), None)
    assert {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))} == before


def test_a_run_that_has_ended_is_exported(small_run):
    """As `finish` does with the variables in memory: the same folder as by the command."""
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


def test_the_code_on_an_audio_card_runs(audio_run):
    folder, _ = audio_run
    export.run(str(folder), None, None)
    card = (folder / "exported" / "README.md").read_text()
    assert "No bound was measured" in card
    assert "| task |" not in card  # nothing was measured
    code = card.split("```python\n")[1].split("```")[0]
    names = {"x": np.zeros((1, 1600), "f")}
    exec(code.replace('load("exported")', f'load("{folder}")'), names)
    assert names["c"].shape == (1, 10, 8)


@pytest.mark.parametrize(("config", "match"), [
    (plain(audio_synthetic.get_config()), r"no checkpoints: train it first .*cpc train"),
    ({"tasks": 3}, "holds no run of audio, image"), (None, r"config\.json"),
])  # fmt: skip
def test_what_is_no_trained_run(tmp_path, config, match):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=match):
        export.run(str(tmp_path), None, None)
