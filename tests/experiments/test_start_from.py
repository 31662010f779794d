"""Runs that start from given weights, and parts that stay fixed."""

import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from cpc import models
from cpc.files import read_json
from cpc.models import hub
from cpc.train import make_mesh, put_batch
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.registry import CONTRASTIVE, read_model
from experiments.train import run
from experiments.training import step, weights
from experiments.training.contrastive import interpret
from tests import plans
from tests.experiments import test_audio, test_clips, test_image, test_series, test_text

AUDIO = CONTRASTIVE["audio"]
CONFIGS = {
    "audio": lambda **more: with_settings(
        test_clips.make_config(), test_audio.TINY | {"probe.tasks": ()} | more
    ),
    "image": lambda **more: with_settings(test_image.make_config(), more),
    "series": test_series.tiny,
    "text": test_text.tiny,
}


def export(path, config, **changes):
    """Save the untrained model of a config in a folder, and return its arrays by name."""
    kind = CONTRASTIVE[config.kind]
    module, given = kind.build_model(config).module, kind.describe_input(config)
    variables = jax.jit(module.init)(jax.random.key(7), jnp.zeros((1, *given["shape"])))
    models.save(path, models.Pretrained(module, variables, given | changes))
    return {name: np.asarray(x) for name, x in flatten_dict(variables, sep="/").items()}


def start(config, source, **settings):
    settings = {"start_from": str(source), **settings}
    found = weights.read_start(CONTRASTIVE[config.kind], with_settings(config, settings), None)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_all_arrays_of_an_export_are_taken(kind, tmp_path):
    config = CONFIGS[kind]()
    wanted = export(tmp_path, config)
    found = start(config, tmp_path)
    assert found.record["initialized"] == found.record["differing"] == []
    for name, array in wanted.items():
        np.testing.assert_array_equal(found.arrays[name], array, err_msg=name)


def test_arrays_that_do_not_fit_are_initialized_unless_their_part_is_wanted(tmp_path):
    config = CONFIGS["audio"]()
    export(tmp_path, config)
    wider = with_settings(config, {"model.context_width": 12})
    found = start(wider, tmp_path)
    assert {weights.find_part(name.split("/")[1]) for name in found.arrays} == {"encoder"}
    assert any("(8,), not (12,)" in line for line in found.record["initialized"])
    assert found.record["differing"] == ["context.width was 8 and is 12"]
    only = start(wider, tmp_path, start_from_parts=("encoder",))
    assert (only.arrays.keys(), only.record["initialized"]) == (found.arrays.keys(), [])
    with pytest.raises(UserError, match=r"context.*start_from_parts"):
        start(wider, tmp_path, start_from_parts=("encoder", "context"))
    with pytest.raises(UserError, match="fits no part"):
        start(with_settings(wider, {"model.width": 12}), tmp_path)


@pytest.mark.parametrize(
    ("changes", "own"),
    [({"kind": "series"}, "audio"), ({"sample_rate_hz": 8000}, "16000")],
)
def test_weights_for_other_input_are_rejected(changes, own, tmp_path):
    export(tmp_path, CONFIGS["audio"](), **changes)
    (name, theirs), *_ = changes.items()
    with pytest.raises(UserError, match=rf"{name} {theirs}.*{own}"):
        start(CONFIGS["audio"](), tmp_path)


def test_frozen_parts_must_be_taken(tmp_path):
    config = CONFIGS["audio"](**{"freeze": ("context",)})
    export(tmp_path, config)
    with pytest.raises(UserError, match=r"does not fit the context"):
        start(with_settings(config, {"model.context_width": 12}), tmp_path)
    settings = {"start_from": str(tmp_path), "start_from_parts": ("encoder",)}
    with pytest.raises(UserError, match="random weights"):
        interpret(AUDIO, with_settings(config, settings))
    settings = {"model.name": "quick_thoughts", "freeze": ("encoder", "context")}
    with pytest.raises(UserError, match="no part is left"):
        interpret(CONTRASTIVE["text"], CONFIGS["text"](**settings))


def test_interrupted_first_save_is_no_checkpoint(tmp_path):
    config = CONFIGS["audio"]()
    export(tmp_path / "a", config)
    config = with_settings(config, {"start_from": str(tmp_path / "a")})
    folder = tmp_path / "b" / "checkpoints"
    (folder / "4.orbax-checkpoint-tmp").mkdir(parents=True)
    assert weights.read_start(AUDIO, config, str(tmp_path / "b")) is not None
    (folder / "4").mkdir()
    assert weights.read_start(AUDIO, config, str(tmp_path / "b")) is None


def test_weights_of_another_stride_are_rejected(tmp_path):
    config = CONFIGS["series"](**{"model.kernels": (4,), "model.strides": (2,)})
    export(tmp_path, config)
    with pytest.raises(UserError, match="stride 2, and this run has 4"):
        start(with_settings(config, {"model.strides": (4,)}), tmp_path)


def test_hub_repositories_are_downloaded(tmp_path, monkeypatch):
    config = CONFIGS["audio"]()
    export(tmp_path / "exported", config)
    asked = []
    api = types.SimpleNamespace(snapshot_download=lambda name, **_: asked.append(name) or tmp_path)
    monkeypatch.setattr(hub, "connect", lambda: contextlib.nullcontext(api))
    assert start(config, "team/voices").arrays
    assert asked == ["team/voices"]


def test_words_keep_their_rows():
    table = {"params": {"encoder": {"embedding": jnp.zeros((4, 1))}}}
    theirs = {"params/encoder/embedding": np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)}
    given = weights.Start(theirs, {}, "<unk> the cat mat")
    found = weights.merge(table, given, "<unk> mat dog the")
    assert found["params"]["encoder"]["embedding"].ravel().tolist() == [1, 4, 0, 2]


@pytest.mark.parametrize("settings", [{}, {"negatives.momentum": 0.9}])
def test_frozen_parts_have_neither_updates_nor_optimizer_state(settings):
    config = CONFIGS["audio"](**{"freeze": ("encoder",), "model.norm": "batch", **settings})
    problem, mesh = plans.problem_of(config, plans.speech(2, 4, 0.2)), make_mesh(1)
    state, update, _ = step.make_step(problem, mesh)
    before = jax.device_get((state.params, state.extra))
    state = update(state, put_batch(problem.draw(0), mesh))
    params, extra = jax.device_get((state.params, state.extra))
    assert "encoder" not in params["model"]
    assert not any("encoder" in name for name, _ in named(state.opt_state))
    for part in ("frozen", "model"):
        jax.tree.map(np.testing.assert_array_equal, extra[part], before[1][part])
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), params["model"], before[0]["model"])
    assert all(jax.tree.leaves(moved))
    variables = step.model_variables(params, None, extra)
    assert set(variables["params"]) == {"encoder", "context", "predictor"}


def named(tree):
    return [(jax.tree_util.keystr(path), x) for path, x in jax.tree.leaves_with_path(tree)]


def test_run_continues_without_the_weights_that_it_started_from(tmp_path, capsys):
    settings = {
        "evaluate.num_windows": 0, "optim.schedule": "constant", "num_steps": 2,
        "start_from": str(tmp_path / "a"), "freeze": ("encoder",),
    }  # fmt: skip
    config = with_settings(CONFIGS["audio"](), settings)
    arrays = export(tmp_path / "a", config)
    run(config, str(tmp_path / "b"))
    record = read_json(tmp_path / "b" / "start_from.json")
    assert (record["source"], record["initialized"]) == (str(tmp_path / "a"), [])
    assert record["digest"] in (tmp_path / "b" / "exported" / "README.md").read_text()
    assert record["digest"] in (tmp_path / "b" / "report.html").read_text()
    (tmp_path / "a").rename(tmp_path / "moved")
    run(with_settings(config, {"num_steps": 4}), str(tmp_path / "b"))
    assert "resuming from step 2" in capsys.readouterr().out
    trained = flatten_dict(read_model(str(tmp_path / "b"), None).variables, sep="/")
    is_same = {name: np.array_equal(trained[name], array) for name, array in arrays.items()}
    assert {name for name, same in is_same.items() if same} == {n for n in arrays if "encoder" in n}
    with pytest.raises(UserError, match="is not a folder"):
        run(config, str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_changed_weights_are_rejected(tmp_path):
    first, second = (weights.Start({}, {"source": "a", "digest": d}) for d in "xy")
    first.record.update(step=None, taken=[], initialized=[], differing=[])
    weights.record_start(tmp_path, first)
    with pytest.raises(UserError, match="a changed"):
        weights.record_start(tmp_path, second)
