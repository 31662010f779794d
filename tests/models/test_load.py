"""Models to files and back: the same numbers to the last bit, and errors for damaged files."""

import functools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import audio_module, image_module, random_variables

from cpc import models
from cpc.files import file_sha256, read_json, write_sealed
from cpc.models.description import build, describe
from cpc.models.load import read_weights, write_weights
from cpc.types import UserError

AUDIO = {"kind": "audio", "shape": [640], "sample_rate_hz": 16000, "rms": 0.05}
IMAGES = {"kind": "image", "shape": [3, 3, 8, 8, 1]}


def pretrained(module, given):
    x = np.zeros((1, *given["shape"]), "f")
    return models.Pretrained(module, random_variables(module, x), given, {"step": 7})


CONV, LINEAR = models.ConvEncoder, models.LinearPredictor
MODULES = {
    **{name: models.CPC(CONV(8), models.GRU(6), make(3, 8))
       for name, make in models.PREDICTORS.items()},
    "branches": models.CPC(
        models.LogMelEncoder(8), models.GRU(6), LINEAR(2, 8), models.TIME_DIRECTIONS, cuts=(2, 5)),
    "codes": models.CPC(models.QuantizedEncoder(CONV(6), 7, 4, 0.5, 1.0, True), models.GRU(5),
                        LINEAR(2, 4)),
    "gru": audio_module(models.GRU(6, 2)),
    "lstm": audio_module(models.LSTM(6), padding="same"),
    "conv": audio_module(models.CausalConv(6, 2, dilated=False), norm="batch"),
    "transformer": audio_module(models.CausalTransformer(8, 1, num_heads=2), norm="channel"),
    "ssm": audio_module(models.StateSpace(6, 2)),
    "segments": models.SegmentalCPC(CONV(8), models.GRU(6), LINEAR(1, 8), 8, threshold=0.2),
    "images": image_module(models.SmallConvEncoder((4, 8), norm="batch"),
                           functools.partial(models.MaskedRowConv, 6, 1)),
    "greedy": image_module(models.SmallConvEncoder((4, 8)), models.RowGRU).clone(cuts=(1, 2)),
    "resnet": image_module(
        models.ResNet((models.Stage(1, 8), models.Stage(1, 8, 4)), pooled_stem=False),
        functools.partial(models.RowGRU, 6, dtype=jnp.dtype("bfloat16"))),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_description_makes_the_same_module(name):
    module = MODULES[name]
    again = build(json.loads(json.dumps(describe(module))))
    assert describe(again) == describe(module)
    if isinstance(module, models.ImageCPC):
        assert again.encoder == module.encoder
        assert again.make_context() == module.make_context()
    else:
        assert again == module


@pytest.mark.parametrize(("name", "given"), [
    ("gru", AUDIO), ("codes", AUDIO), ("images", IMAGES),
])  # fmt: skip
def test_what_is_loaded_is_the_same_to_the_last_bit(tmp_path, name, given):
    """Statistics and codebooks are kept, penalties and measures are not."""
    first = pretrained(MODULES[name], given)
    assert ("penalties" in first.variables) == (name == "codes")
    kept = {k: first.variables[k] for k in ("params", "batch_stats", "codebook")
            if k in first.variables}  # fmt: skip
    models.save(tmp_path / "run" / "exported", first)
    for folder in (tmp_path / "run" / "exported", tmp_path / "run"):
        again = models.load_pretrained(folder)
        assert (again.input, again.about) == (given, {"step": 7})
        assert describe(again.module) == describe(first.module)
        jax.tree.map(np.testing.assert_array_equal, again.variables, kept)


def test_arrays_in_another_order_are_written_as_they_read(tmp_path):
    array = np.arange(6, dtype="f").reshape(2, 3).T
    write_weights(tmp_path / "a.safetensors", {"a": array})
    np.testing.assert_array_equal(read_weights(tmp_path / "a.safetensors")["a"], array)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return models.save(tmp_path_factory.mktemp("saved"), pretrained(audio_module(), AUDIO))


@pytest.fixture
def folder(tmp_path, saved):
    return shutil.copytree(saved, tmp_path / "shared")


def edit(folder, **changes):
    """Change the description and its checksum."""
    path = folder / "config.json"
    write_sealed(path, {**read_json(path), **changes})


def edit_weights(folder, **arrays):
    """Replace entries of the weights, None for none, and the checksum in the description."""
    path = folder / "model.safetensors"
    whole = {**read_weights(path), **arrays}
    write_weights(path, {name: array for name, array in whole.items() if array is not None})
    edit(folder, sha256=file_sha256(path))


def test_a_folder_without_a_model_or_of_something_else(tmp_path):
    with pytest.raises(UserError, match=r"model.safetensors.*cpc export --workdir"):
        models.load(tmp_path)
    (tmp_path / "config.json").write_text('{"seed": 0}')
    with pytest.raises(UserError, match=r"config.json of another format"):
        models.save(tmp_path, pretrained(audio_module(), AUDIO))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == '{"seed": 0}'


def test_a_run_does_not_load_as_older_than_it_is(tmp_path, saved):
    shutil.copytree(saved, tmp_path / "exported")  # of step 7
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    (tmp_path / "checkpoints" / "damaged-9-1").mkdir()
    assert models.load_pretrained(tmp_path).about == {"step": 7}
    (tmp_path / "checkpoints" / "10").mkdir()
    with pytest.raises(UserError, match=r"step 7 .*step 10"):
        models.load(tmp_path)
    assert models.load_pretrained(tmp_path / "exported").about == {"step": 7}
    edit(tmp_path / "exported", about={"step": 10})
    assert models.load_pretrained(tmp_path).about == {"step": 10}


def test_every_entry_that_does_not_fit_is_listed(folder):
    names = ["params/encoder/kernel1", "params/encoder/kernel2"]
    kernel = read_weights(folder / "model.safetensors")[names[0]]
    edit_weights(folder, **{names[0]: kernel.astype(np.int8)})
    with pytest.raises(UserError, match=f"{names[0]} .* int8"):
        models.load(folder)
    more = {"params/more": np.zeros(1, "f"), "params/context/bias0": np.zeros((2, 3), "f")}
    edit_weights(folder, **dict.fromkeys(names), **more)
    with pytest.raises(UserError) as error:
        models.load(folder)
    assert str(error.value).endswith(
        f"missing {', '.join(names)}; unknown params/more; "
        "misshapen params/context/bias0 is float32(2, 3), not float32(6,)"
    )


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_damage_of_an_export_is_noticed(folder, name):
    """Flipped bits in the arrays, in their header, and in the description, and a short file."""
    rng, path = np.random.default_rng(0), folder / name
    whole = path.read_bytes()
    for place in (*rng.integers(0, len(whole), 10), len(whole) - 5, None):
        damaged = bytearray(whole if place is not None else whole[:-10])
        if place is not None:
            damaged[place] ^= 1 << int(rng.integers(7))
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=name):
            models.load(folder)
    path.write_bytes(whole)
    models.load(folder)


GOOD = describe(audio_module())


def with_field(part, **fields):
    return {"model": {**GOOD, part: {**GOOD[part], **fields}}}


WRONG = [
    ({"format": "cpc 9"}, "'cpc 9'"), (with_field("context", depth=3), "'depth'"),
    ({"model": {"type": "Popen", "args": ["ls"]}}, "'Popen'"),
    ({"model": describe(audio_module(models.GRU(5, 2)))}, "missing .*input1"),
    *(({"model": model}, "model") for model in (None, GOOD["context"], {"type": ["CPC"]})),
    ({"model": {**GOOD, "context": "GRU"}}, ""), ({"model": {**GOOD, "context": {}}}, ""),
    *((with_field("context", num_layers=size), "") for size in (2**31, "1", -1)),
    (with_field("encoder", dtype="int8"), ""), (with_field("encoder", strides=[0, 4, 2, 2, 2]), ""),
    (with_field("encoder", kernels=[1] * 10**3, strides=[1] * 10**3), ""),
    (with_field("encoder", width=10**12), ""),
    ({"model": {"type": "ImageCPC", "encoder": GOOD["encoder"], "make_context": 3}}, ""),
    ({"about": {"step": "a"}}, "input kind"),
    *(({"input": x}, "input kind") for x in (None, {**AUDIO, "kind": None}, {**AUDIO, "rms": "a"})),
    *(({"input": {**AUDIO, "shape": x}}, "") for x in (None, [0], [10**12], [640] * 5)),
    ({"sha256": ""}, "sha256"), (b"[]", ""), (b"[" * 5000 + b"]" * 5000, ""), (b"\xff", ""),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "match"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_or_hostile_config_is_one_line(folder, changes, match):
    if isinstance(changes, bytes):
        (folder / "config.json").write_bytes(changes)
    else:
        edit(folder, **changes)
    with pytest.raises(UserError, match=r"config\.json|model\.safetensors") as error:
        models.load(folder)
    assert re.search(match, str(error.value))
    assert len(str(error.value)) < 600
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_a_file_of_something_else(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(UserError, match="does not exist"):
        read_weights(path)
    path.write_bytes(b"nothing of the kind, but long enough to hold a header")
    with pytest.raises(UserError, match="damaged"):
        read_weights(path)
    for array, match in ((np.array([b"abc"]), "dtype"), (np.array([{}]), "damaged")):
        np.savez(tmp_path / "b.npz", a=array)
        with pytest.raises(UserError, match=match):
            read_weights(tmp_path / "b.npz")
