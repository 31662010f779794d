"""Models to files and back: the same numbers to the last bit, and sentences for what is wrong."""

import builtins
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.models import (
    CPC,
    GRU,
    LSTM,
    CausalConv,
    CausalTransformer,
    ConvEncoder,
    ImageCPC,
    LinearPredictor,
    MaskedRowConv,
    Pretrained,
    ResNet,
    RowGRU,
    SmallConvEncoder,
    Stage,
    load,
    load_pretrained,
    make_model,
    save,
)
from cpc.models.description import build, describe
from cpc.models.weights import read_weights, write_weights
from cpc.types import UserError

AUDIO = {"kind": "audio", "shape": [640], "sample_rate_hz": 16000, "rms": 0.05}
IMAGES = {"kind": "image", "shape": [3, 3, 8, 8, 1]}


def audio_module(context=None, **options):
    encoder = ConvEncoder(8, **options)
    return CPC(encoder, GRU(6) if context is None else context, LinearPredictor(2, 8))


def image_module(encoder=None, make_context=None, width=8):
    return ImageCPC(
        SmallConvEncoder((4, 8), norm="batch") if encoder is None else encoder,
        make_context or functools.partial(MaskedRowConv, 6, 1),
        functools.partial(LinearPredictor, 1, width),
        directions=("down", "left"),
        channels=1,
    )


def pretrained(module, given):
    x = np.zeros((1, *given["shape"]), "f")
    return Pretrained(module, random_variables(module, x), given, {"step": 7})


MODULES = {
    "gru": (audio_module(GRU(6, 2)), AUDIO),
    "lstm": (audio_module(LSTM(6), padding="same"), AUDIO),
    "conv": (audio_module(CausalConv(6, 2), norm="batch"), AUDIO),
    "transformer": (audio_module(CausalTransformer(8, 1, num_heads=2), norm="channel"), AUDIO),
    "images": (image_module(), IMAGES),
    "resnet": (
        image_module(
            ResNet((Stage(1, 8), Stage(1, 8, 4)), pooled_stem=False),
            functools.partial(RowGRU, 6, dtype=jnp.dtype("bfloat16")),
        ),
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_description_makes_the_same_module(name):
    module, _ = MODULES[name]
    again = build(json.loads(json.dumps(describe(module))))
    assert describe(again) == describe(module)
    if isinstance(module, CPC):
        assert again == module
    else:
        assert again.encoder == module.encoder
        assert again.make_context() == module.make_context()


@pytest.mark.parametrize("name", ["gru", "images"])
def test_what_is_loaded_embeds_the_same_to_the_last_bit(tmp_path, name):
    module, given = MODULES[name]
    first = pretrained(module, given)
    x = np.random.default_rng(0).normal(size=(2, *given["shape"])).astype("f")
    wanted = jax.jit(make_model(module).embed)(first.variables, x)
    save(tmp_path / "run" / "exported", first)
    for folder in (tmp_path / "run" / "exported", tmp_path / "run"):
        for a, b in zip(load(folder)(x), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    again = load_pretrained(tmp_path / "run")
    assert again.input == given
    assert again.about == {"step": 7}
    jax.tree.map(np.testing.assert_array_equal, again.variables, first.variables)


def test_arrays_that_lie_in_another_order_are_written_as_they_read(tmp_path):
    array = np.arange(6, dtype="f").reshape(2, 3).T
    write_weights(tmp_path / "a.safetensors", {"a": array})
    np.testing.assert_array_equal(read_weights(tmp_path / "a.safetensors")["a"], array)


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "shared", pretrained(audio_module(), AUDIO))


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_without_a_model_says_how_to_export(tmp_path):
    with pytest.raises(UserError, match=r"has no model.safetensors.*experiments.export --workdir"):
        load(tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"seed": 0}')
    with pytest.raises(UserError, match=r"has a config.json of something else: choose another"):
        save(tmp_path, pretrained(audio_module(), AUDIO))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == '{"seed": 0}'


def test_a_run_does_not_load_as_older_than_it_is(tmp_path):
    first = pretrained(audio_module(), AUDIO)  # of step 7
    save(tmp_path / "exported", first)
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    (tmp_path / "checkpoints" / "damaged-9-1").mkdir()
    assert load_pretrained(tmp_path).about == {"step": 7}
    (tmp_path / "checkpoints" / "10").mkdir()
    with pytest.raises(UserError, match=r"exported is of step 7 and the run now at step 10: exp"):
        load(tmp_path)
    assert load_pretrained(tmp_path / "exported").about == {"step": 7}
    save(tmp_path / "exported", first._replace(about={"step": 10}))
    assert load_pretrained(tmp_path).about == {"step": 10}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": "cpc 9"}, "format 'cpc 9'"),
        ({"model": {"type": "Popen", "args": ["ls"]}}, "type 'Popen' is unknown: known are CPC"),
        ({"model": {"type": "GRU", "depth": 3}}, "depth make no GRU"),
        ({"input": {}}, "KeyError"),
        ({"model": describe(audio_module(GRU(5, 2)))}, "do not fit the model: missing .*input1"),
    ],
)
def test_a_config_that_is_wrong(folder, changes, match):
    edit(folder, **changes)
    with pytest.raises(UserError, match=match):
        load(folder)


def test_every_entry_that_does_not_fit_is_listed(folder):
    arrays = read_weights(folder / "model.safetensors")
    del arrays["params/encoder/kernel1"], arrays["params/encoder/kernel2"]
    arrays["params/more"] = np.zeros(1, "f")
    arrays["params/context/bias0"] = np.zeros((2, 3), "f")
    write_weights(folder / "model.safetensors", arrays)
    with pytest.raises(UserError) as error:
        load(folder)
    assert str(error.value).endswith(
        "missing params/encoder/kernel1, params/encoder/kernel2; unknown params/more; "
        "misshapen params/context/bias0 is (2, 3) and must be (6,)"
    )


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_cut_short(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=name):
        load(folder)


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_a_file_of_something_else(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(UserError, match="there is no file"):
        read_weights(path)
    path.write_bytes(b"nothing of the kind, but long enough to hold a header")
    with pytest.raises(UserError, match="damaged or no file of weights"):
        read_weights(path)


def test_an_npz_of_objects_is_not_opened(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="damaged or no file of weights"):
        read_weights(tmp_path / "a.npz")


def test_without_safetensors_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    def refuse(name, *rest):
        if name.startswith("safetensors"):
            raise ImportError(name)
        return real(name, *rest)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match="pip install safetensors"):
        write_weights(tmp_path / "new" / "a.safetensors", {})
    assert not list(tmp_path.iterdir())
