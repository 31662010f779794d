"""Checkpoints of torch, with a stand-in for torch itself: see tests/goldens/read_torch.py."""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models import load_cpc_audio, make_model
from cpc.models.load import read_checkpoint
from cpc.types import UserError
from tests import fake_torch

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
WEIGHTS = dict(np.load(GOLDENS / "checkpoint_weights.npz"))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a.pt").touch()
    return tmp_path / "a.pt"


def test_weights_of_torch_compute_what_torch_computed(monkeypatch, path):
    """By the state dict alone, and by a training that saved more than the network."""
    expected = np.load(GOLDENS / "checkpoint.npz")
    more = {"speakerEmb.weight": np.zeros((2, 2), "f4")}
    training = {"gEncoder": {**WEIGHTS, **more}, "cpcCriterion": more, "step": 3}
    fake_torch.install(monkeypatch, training)
    one, pretrained = (load_cpc_audio(f) for f in (GOLDENS / "checkpoint_weights.npz", path))
    assert (pretrained.module.context.num_layers, pretrained.input["rms"]) == (2, None)
    model = make_model(pretrained.module)
    z, c = jax.jit(model.embed)(pretrained.variables, jnp.asarray(expected["x"]))
    np.testing.assert_allclose(z, expected["z"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c, expected["c"], rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, one.variables, pretrained.variables)


@pytest.mark.parametrize("key", ["weights", "gEncoder", "state_dict", None])
def test_arrays_of_a_checkpoint_are_float32(monkeypatch, path, key):
    arrays = {"a": np.arange(3.0), "b": np.ones(2, np.float16)}
    config = {"config": {"x": 1}} if key else {}
    fake_torch.install(monkeypatch, {key: {**arrays, "n": 1}, **config} if key else arrays)
    found, config = read_checkpoint(path)
    assert {name: array.dtype for name, array in found.items()} == {"a": "float32", "b": "float32"}
    assert found["a"].tolist() == [0, 1, 2]
    assert config == ({"x": 1} if key else {})


@pytest.mark.parametrize(("content", "match"), [
    ({"weights": {"a": 1}, "step": 3}, "weights, gEnc"), ([1], "no named arrays"),
    (ValueError("Failed.\nUnsupported: GLOBAL os.mkdir was"), "os.mkdir"), (EOFError(), "EOFError"),
    ({"conv.weight": np.zeros(3)}, "gEncoder"),
    ({"config": {"cpc_mode": "reverse"}, "weights": WEIGHTS}, "cpc_mode 'reverse'"),
])  # fmt: skip
def test_what_is_not_a_checkpoint_is_one_sentence(monkeypatch, path, content, match):
    fake_torch.install(monkeypatch, content)
    with pytest.raises(UserError, match=match) as error:
        load_cpc_audio(path)
    assert "\n" not in str(error.value)


def test_without_torch_it_is_said_how_to_get_it(monkeypatch, path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"a.pt.*pip install 'cpc-jax\[torch\]'"):
        load_cpc_audio(path)
    with pytest.raises(UserError, match=r"b.pt"):
        load_cpc_audio(path.with_name("b.pt"))
    with pytest.raises(UserError, match=r".safetensors, .npz, .pt, .pth"):
        load_cpc_audio(path.with_name("b.bin"))
