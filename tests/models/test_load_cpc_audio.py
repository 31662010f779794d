"""Checkpoints of CPC_audio by their own entry names, against outputs of torch."""

import pathlib
import sys

import jax
import numpy as np
import pytest

from cpc.models import load_cpc_audio, load_pretrained, make_model, save
from cpc.models.load import write_weights
from cpc.types import UserError

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "goldens"))
from goldens import load_golden

_, CASES = load_golden("encoder_forward.npz")
WEIGHTS = CASES["weights"][1]


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


@pytest.mark.parametrize(
    ("case", "norm", "context", "layers", "ending"),
    [
        ("channelnorm_gru", "channel", "gru", 1, "safetensors"),
        ("batch_eval_gru", "batch", "gru", 1, "npz"),
        ("none_lstm", "none", "lstm", 1, "npz"),
        ("none_gru2", "none", "gru", 2, "safetensors"),
    ],
)
def test_equals_the_original(saved, case, norm, context, layers, ending):
    _, inputs, expected = CASES[case]
    pretrained = load_cpc_audio(saved(state_dict(norm, context, layers), ending))
    z, c = make_model(pretrained.module).embed(
        pretrained.variables, jax.numpy.asarray(inputs["x"][:, 0])
    )
    np.testing.assert_allclose(z, expected["z"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c, expected["c"], rtol=1e-5, atol=1e-5)


def test_it_can_be_saved_in_our_own_format_without_a_predictor(saved, tmp_path):
    pretrained = load_cpc_audio(saved(state_dict()))
    folder = save(tmp_path / "shared", pretrained)
    again = load_pretrained(folder)
    jax.tree.map(np.testing.assert_array_equal, again.variables, pretrained.variables)
    assert again.input["rms"] is None


def test_every_wrong_entry_is_listed(saved):
    entries = state_dict()
    del entries["gEncoder.conv1.weight"], entries["gAR.baseNet.bias_ih_l0"]
    entries["gEncoder.conv3.weight"] = np.zeros((32, 32, 5), "f")
    entries["gEncoder.batchNorm4.bias"] = np.zeros((32,), "f")
    entries["cpcCriterion.w"] = np.zeros((), "f")
    with pytest.raises(UserError) as error:
        load_cpc_audio(saved(entries))
    assert str(error.value).endswith(
        "missing gEncoder.conv1.weight, gAR.baseNet.bias_ih_l0; unknown cpcCriterion.w; misshapen "
        "gEncoder.conv3.weight is (32, 32, 5) and must be (32, 32, 4), "
        "gEncoder.batchNorm4.bias is (32,) and must be (1, 32, 1)"
    )


HH, BIAS0 = "gAR.baseNet.weight_hh_l0", "gEncoder.conv0.bias"


@pytest.mark.parametrize(
    ("wrong", "listed"),
    [
        ({BIAS0: (31,)}, f"misshapen {BIAS0} is (31,) and must be (32,)"),
        ({"more": (2,)}, "unknown more"),
        (
            {"gEncoder.batchNorm0.running_mean": (32,), f"{HH}_reverse": (72, 24)},
            f"unknown gEncoder.batchNorm0.running_mean, {HH}_reverse",
        ),
    ],
)
def test_wrong_entries_are_listed(saved, wrong, listed):
    entries = state_dict()
    for name, shape in wrong.items():
        entries.pop(name, None)
        if shape:
            entries[name] = np.zeros(shape, "f")
    with pytest.raises(UserError) as error:
        load_cpc_audio(saved(entries))
    assert str(error.value).endswith(f"do not fit the model: {listed}")


def test_a_layer_that_lacks_its_recurrent_weights_still_counts(saved):
    entries = state_dict("none", "gru", 2)
    del entries["gAR.baseNet.weight_hh_l1"]
    with pytest.raises(UserError, match=r"model: missing gAR.baseNet.weight_hh_l1$"):
        load_cpc_audio(saved(entries))


@pytest.mark.parametrize(
    ("name", "shape"), [(HH, None), (HH, (96,)), ("gEncoder.conv0.weight", (32, 1))]
)
def test_an_entry_that_gives_a_size_is_needed(saved, name, shape):
    entries = state_dict()
    entries.pop(name)
    if shape:
        entries[name] = np.zeros(shape, "f")
    with pytest.raises(UserError, match=rf"has no {name} of \d axes"):
        load_cpc_audio(saved(entries))


def test_other_networks_are_named(saved):
    entries = state_dict()
    recurrent = {name: array[:24] for name, array in entries.items() if "gAR" in name}
    with pytest.raises(UserError, match="has 1 gates, but only GRU and LSTM"):
        load_cpc_audio(saved({**entries, **recurrent}))
    scales = {n: a.reshape(-1) for n, a in entries.items() if "batchNorm" in n}
    with pytest.raises(UserError, match="instance norm"):
        load_cpc_audio(saved({**entries, **scales}))
    with pytest.raises(UserError, match=r"no entry gEncoder... or gAR..."):
        load_cpc_audio(saved({"linear.weight": np.zeros((2, 2), "f")}))


@pytest.mark.parametrize(
    "prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod.", "model.module."]
)
def test_prefixes_of_wrappers_are_removed(saved, prefix):
    plain = load_cpc_audio(saved(state_dict("none"))).variables
    wrapped = {prefix + name: array for name, array in state_dict("none").items()}
    wrapped = {
        name.replace("conv2.", "_orig_mod.conv2.").replace("gAR.", "gAR.module."): array
        for name, array in wrapped.items()
    }
    found = load_cpc_audio(saved(wrapped)).variables
    jax.tree.map(np.testing.assert_array_equal, found, plain)


def test_entries_of_another_format_are_named(saved):
    entries = {f"net.{name}": array for name, array in state_dict("none").items()}
    with pytest.raises(UserError, match=r"net\.gEncoder\.conv0\.weight"):
        load_cpc_audio(saved(entries))
    both = {**state_dict("none"), "module.gEncoder.conv0.bias": np.zeros(32, "f")}
    with pytest.raises(UserError, match="with and without a prefix"):
        load_cpc_audio(saved(both))
