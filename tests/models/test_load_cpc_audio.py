"""Checkpoints of CPC_audio, compared with torch, and torch files with a stand-in for torch.

See tests/goldens/read_torch.py.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models import load_cpc_audio, load_pretrained, make_model, save
from cpc.models.layers import part_of
from cpc.models.load import read_checkpoint, write_weights
from cpc.types import UserError
from tests import fake_torch
from tests.goldens.goldens import load_golden

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
META, CASES = load_golden("encoder_forward.npz")
WEIGHTS = CASES["weights"][1]
TORCH_WEIGHTS = dict(np.load(GOLDENS / "checkpoint_weights.npz"))


def state_dict(norm="channel", context="gru", layers=1):
    """The golden weights under the names, and in the shapes, of CPC_audio."""
    entries = {}
    for i in range(5):
        for kind in ("weight", "bias"):
            entries[f"gEncoder.conv{i}.{kind}"] = WEIGHTS[f"conv{i}.{kind}"]
            if norm != "none":
                scale = WEIGHTS[f"norm{i}.{kind}"]
                scale = scale[None, :, None] if norm == "channel" else scale
                entries[f"gEncoder.batchNorm{i}.{kind}"] = scale
        if norm == "batch":
            for kind in ("running_mean", "running_var"):
                entries[f"gEncoder.batchNorm{i}.{kind}"] = WEIGHTS[f"norm{i}.{kind}"]
            entries[f"gEncoder.batchNorm{i}.num_batches_tracked"] = np.int64(3)
    for i in range(layers):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            entries[f"gAR.baseNet.{kind}_l{i}"] = WEIGHTS[f"{context}{i}.{kind}"]
    return entries


@pytest.fixture
def saved(tmp_path):
    def write(entries, ending="npz"):
        path = tmp_path / f"checkpoint.{ending}"
        if ending == "npz":
            np.savez(path, **entries)
        else:
            write_weights(path, entries)
        return path

    return write


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("weights", "window20480")])
def test_equals_golden(saved, name):
    """Also with paddings, layer norm and batch norm in training, which no such checkpoint has."""
    params, inputs, expected = CASES[name]
    norm, _, mode = params["norm"].partition("_")
    entries = state_dict(norm.replace("layer", "channel"), params["context"], params["layers"])
    module, variables, *_ = load_cpc_audio(saved(entries, "npz" if mode else "safetensors"))
    encoder = module.encoder.clone(norm=norm, padding=tuple(params["padding"]))
    x, start = jnp.asarray(inputs["x"][:, 0]), inputs.get("h0")

    @jax.jit
    def run(x):
        train = mode == "train"
        own, mutable = part_of(variables, "encoder"), ["batch_stats"] if train else False
        z = encoder.apply(own, x, train, mutable=mutable)
        z = z[0] if train else z
        h = None if start is None else (jnp.asarray(start).reshape(len(z), -1),)
        return z, module.context.apply(part_of(variables, "context"), z, h, method="advance")[0]

    tolerance = {"rtol": META["tolerance"]["f32_rtol"], "atol": META["tolerance"]["f32_atol"]}
    for found, key in zip(run(x), "zc", strict=True):
        np.testing.assert_allclose(found, expected[key], **tolerance)


HH, BIAS0 = "gAR.baseNet.weight_hh_l0", "gEncoder.conv0.bias"
CONV3, NORM4 = "gEncoder.conv3.weight", "gEncoder.batchNorm4.bias"
MEAN = "gEncoder.batchNorm0.running_mean"


@pytest.mark.parametrize(("layers", "wrong", "listed"), [
    (1, {MEAN: (32,), f"{HH}_reverse": (72, 24)}, f"unknown {MEAN}, {HH}_reverse"),
    (1, {"gEncoder.conv1.weight": None, "more": (), CONV3: (32, 32, 5), NORM4: (32,)},
     f"missing gEncoder.conv1.weight; unknown more; misshapen {CONV3} is float32(32, 32, 5), "
     f"not float32(32, 32, 4), {NORM4} is float32(32,), not float32(1, 32, 1)"),
    (2, {HH.replace("l0", "l1"): None}, f"missing {HH.replace('l0', 'l1')}"),  # a layer still
])  # fmt: skip
def test_every_wrong_entry_is_listed(saved, layers, wrong, listed):
    entries = state_dict("none" if layers == 2 else "channel", layers=layers)
    for name, shape in wrong.items():
        entries.pop(name, None)
        if shape is not None:
            entries[name] = np.zeros(shape, "f")
    with pytest.raises(UserError) as error:
        load_cpc_audio(saved(entries))
    assert str(error.value).endswith(f"do not fit the model: {listed}")


def test_prefixes_of_wrappers_are_removed(saved):
    plain = load_cpc_audio(saved(state_dict("none"))).variables
    for prefix in ("module.", "_orig_mod.", "model.module."):
        names = {n: n.replace("conv2.", "_orig_mod.conv2.").replace("gAR.", "gAR.module.")
                 for n in state_dict("none")}  # fmt: skip
        wrapped = {prefix + names[name]: array for name, array in state_dict("none").items()}
        found = load_cpc_audio(saved(wrapped)).variables
        jax.tree.map(np.testing.assert_array_equal, found, plain)


def test_other_networks_and_entries_that_give_no_size_are_named(saved):
    entries = state_dict()
    recurrent = {name: array[:24] for name, array in entries.items() if "gAR" in name}
    scales = {n: a.reshape(-1) for n, a in entries.items() if "batchNorm" in n}
    for wrong, words in (
        ({**entries, **recurrent}, "1 gates"),
        ({**entries, **scales}, "instance norm"),
        ({"linear.weight": np.zeros((2, 2), "f")}, r"gEncoder.*gAR.*got 1, first .linear.weight"),
        ({f"net.{name}": array for name, array in entries.items()}, r"net\.gEncoder\.conv0\."),
        ({**entries, f"module.{BIAS0}": np.zeros(32, "f")}, "with and without a prefix"),
        ({n: a for n, a in entries.items() if n != HH}, rf"checkpoint.* {HH} .*\d axes"),
        *(({**entries, name: np.zeros(shape, "f")}, rf"checkpoint.* {name} .*\d axes")
          for name, shape in ((HH, 96), ("gEncoder.conv0.weight", (32, 1)))),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            load_cpc_audio(saved(wrong))


@pytest.fixture
def torch_file(tmp_path):
    (tmp_path / "a.pt").touch()
    return tmp_path / "a.pt"


def test_weights_of_torch_compute_what_torch_computed(monkeypatch, tmp_path, torch_file):
    """By the state dict alone, and by a training that saved more than the network."""
    expected = dict(np.load(GOLDENS / "checkpoint.npz"))
    more = {"speakerEmb.weight": np.zeros((2, 2), "f4")}
    training = {"gEncoder": {**TORCH_WEIGHTS, **more}, "cpcCriterion": more, "step": 3}
    fake_torch.install(monkeypatch, training)
    one, pretrained = (load_cpc_audio(f) for f in (GOLDENS / "checkpoint_weights.npz", torch_file))
    again = load_pretrained(save(tmp_path / "shared", pretrained))  # without a predictor
    assert (again.module.context.num_layers, again.input["rms"]) == (2, None)
    model = make_model(pretrained.module)
    z, c = jax.jit(model.embed)(pretrained.variables, jnp.asarray(expected["x"]))
    np.testing.assert_allclose(z, expected["z"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c, expected["c"], rtol=1e-5, atol=1e-5)
    for other in (one, again):
        jax.tree.map(np.testing.assert_array_equal, other.variables, pretrained.variables)


@pytest.mark.parametrize("key", ["weights", "gEncoder", "state_dict", None])
def test_arrays_of_a_checkpoint_are_float32(monkeypatch, torch_file, key):
    arrays = {"a": np.arange(3.0), "b": np.ones(2, np.float16)}
    config = {"config": {"x": 1}} if key else {}
    fake_torch.install(monkeypatch, {key: {**arrays, "n": 1}, **config} if key else arrays)
    found, config = read_checkpoint(torch_file)
    assert {name: array.dtype for name, array in found.items()} == {"a": "float32", "b": "float32"}
    assert found["a"].tolist() == [0, 1, 2]
    assert config == ({"x": 1} if key else {})


@pytest.mark.parametrize(("content", "match"), [
    ({"weights": {"a": 1}, "step": 3}, "weights, gEnc"), ([1], "no arrays"),
    (ValueError("Failed.\nUnsupported: GLOBAL os.mkdir was"), "os.mkdir"), (EOFError(), "EOFError"),
    ({"conv.weight": np.zeros(3)}, "gEncoder"),
    ({"config": {"cpc_mode": "reverse"}, "weights": TORCH_WEIGHTS}, "cpc_mode 'reverse'"),
])  # fmt: skip
def test_what_is_not_a_checkpoint_is_one_sentence(monkeypatch, torch_file, content, match):
    fake_torch.install(monkeypatch, content)
    with pytest.raises(UserError, match=match) as error:
        load_cpc_audio(torch_file)
    assert "\n" not in str(error.value)


def test_without_torch_it_is_said_how_to_get_it(monkeypatch, torch_file):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"a.pt.*pip install 'cpc-jax\[torch\]'"):
        load_cpc_audio(torch_file)
    for name, words in (("b.pt", "b.pt"), ("b.bin", ".safetensors, .npz, .pt, .pth")):
        with pytest.raises(UserError, match=words):
            load_cpc_audio(torch_file.with_name(name))
