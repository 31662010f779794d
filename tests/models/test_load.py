"""Models to files and back: the same numbers to the last bit, and sentences for what is wrong."""

import functools
import json
import shutil
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_variables import random_variables

from cpc.files import file_sha256, read_json, write_sealed
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
    SegmentalCPC,
    SmallConvEncoder,
    Stage,
    load,
    load_pretrained,
    make_model,
    save,
)
from cpc.models.description import build, describe
from cpc.models.load import read_weights, write_weights
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
    "undilated": (audio_module(CausalConv(6, 2, dilated=False)), AUDIO),
    "transformer": (audio_module(CausalTransformer(8, 1, num_heads=2), norm="channel"), AUDIO),
    "segments": (
        SegmentalCPC(ConvEncoder(8), GRU(6), LinearPredictor(1, 8), 8, threshold=0.2),
        AUDIO,
    ),
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
    if not isinstance(module, ImageCPC):
        assert again == module
    else:
        assert again.encoder == module.encoder
        assert again.make_context() == module.make_context()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "images"])
def test_what_is_loaded_embeds_the_same_to_the_last_bit(tmp_path, name):
    module, given = MODULES[name]
    first = pretrained(module, given)
    x = np.random.default_rng(0).normal(size=(2, *given["shape"])).astype("f")
    wanted = jax.jit(make_model(module).embed)(first.variables, x)
    save(tmp_path / "run" / "exported", first)
    for folder in (tmp_path / "run" / "exported", tmp_path / "run"):
        again = load_pretrained(folder)
        found = jax.jit(make_model(again.module).embed)(again.variables, x)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert again.input == given
    assert again.about == {"step": 7}
    jax.tree.map(np.testing.assert_array_equal, again.variables, first.variables)


def test_arrays_that_lie_in_another_order_are_written_as_they_read(tmp_path):
    array = np.arange(6, dtype="f").reshape(2, 3).T
    write_weights(tmp_path / "a.safetensors", {"a": array})
    np.testing.assert_array_equal(read_weights(tmp_path / "a.safetensors")["a"], array)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("saved"), pretrained(audio_module(), AUDIO))


@pytest.fixture
def folder(tmp_path, saved):
    return shutil.copytree(saved, tmp_path / "shared")


def edit(folder, **changes):
    """As somebody does who knows of the seal."""
    path = folder / "config.json"
    write_sealed(path, {**read_json(path), **changes})


def test_a_folder_without_a_model_says_how_to_export(tmp_path):
    with pytest.raises(UserError, match=r"has no model.safetensors.*cpc export --workdir"):
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
        (
            {"model": {**describe(audio_module()), "context": {"type": "GRU", "depth": 3}}},
            "unexpected keyword argument 'depth'",
        ),
        ({"input": {}}, "lacks the kind, shape"),
        ({"input": {"kind": "audio", "shape": [0]}}, "lacks the kind, shape"),
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
    edit(folder, sha256=file_sha256(folder / "model.safetensors"))
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


def test_every_flipped_bit_of_an_export_is_noticed(folder):
    """In the arrays, in their header, and in the description."""
    rng = np.random.default_rng(0)
    for name in ("model.safetensors", "config.json"):
        path = folder / name
        whole = path.read_bytes()
        for place in (*rng.integers(0, len(whole), 10), len(whole) - 5):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(rng.integers(7))
            path.write_bytes(flipped)
            with pytest.raises(UserError, match=name):
                load(folder)
        path.write_bytes(whole)
    load(folder)


GOOD = describe(audio_module())


def with_field(part, **fields):
    return {**GOOD, part: {**GOOD[part], **fields}}


HOSTILE = [
    *({"model": model} for model in (None, 3, {}, GOOD["context"], {**GOOD, "type": ["CPC"]})),
    *({"model": {**GOOD, "context": part}} for part in (None, "GRU", {"type": "Popen"})),
    *({"model": with_field("context", num_layers=size)} for size in (2**31, "1", [1], -1)),
    *({"model": with_field("encoder", dtype=dtype)} for dtype in ("int8", None, ["float32"])),
    {"model": with_field("encoder", kernels=[1] * 10**3, strides=[1] * 10**3)},
    {"model": with_field("encoder", strides=[0, 4, 2, 2, 2])},
    {"model": with_field("encoder", width=10**12)},
    {"model": {"type": "ImageCPC", "encoder": GOOD["encoder"], "make_context": 3}},
    *({"about": about} for about in ({"step": "a"}, {"step": [1]})),
    *({"input": given} for given in (None, 3, {**AUDIO, "kind": None}, {**AUDIO, "rms": "a"})),
    *({"input": {**AUDIO, "shape": shape}} for shape in (None, [], [-1], [10**12], [640] * 5)),
    {"format": None},
    {"sha256": ""},
]


@pytest.mark.parametrize("changes", HOSTILE, ids=lambda changes: str(changes)[:60])
def test_a_hostile_config_is_one_sentence(folder, changes):
    edit(folder, **changes)
    with pytest.raises(UserError, match=r"config\.json|model\.safetensors") as error:
        load(folder)
    assert len(str(error.value)) < 600
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"a"', "[" * 5000 + "]" * 5000, "\xff"])
def test_a_config_that_is_no_object_is_one_sentence(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"config\.json"):
        load(folder)


def npz_with_header(path, header, content=b"\0" * 16):
    with zipfile.ZipFile(path, "w") as file, file.open("a.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(content)


@pytest.mark.parametrize("shape", [(10**12,), (-1,), (5,), (10**6, 10**6, 10**6)])
def test_an_npz_that_claims_more_than_it_holds_allocates_nothing(tmp_path, shape):
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    npz_with_header(tmp_path / "a.npz", header)
    with pytest.raises(UserError, match=r"a\.npz .*claims"):
        read_weights(tmp_path / "a.npz")


@pytest.mark.parametrize("array", [np.array([b"abc"]), np.array(["abc"]), np.array([1j])])
def test_an_npz_of_no_numbers_is_one_sentence(tmp_path, array):
    np.savez(tmp_path / "a.npz", a=array)
    with pytest.raises(UserError, match="dtype"):
        read_weights(tmp_path / "a.npz")


def test_an_npz_that_inflates_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("cpc.files.MAX_ARRAY_BYTES", 2**20)
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(2**19, "f"))
    with pytest.raises(UserError, match="limit"):
        read_weights(tmp_path / "a.npz")


def test_weights_of_whole_numbers_are_one_sentence(folder):
    arrays = read_weights(folder / "model.safetensors")
    arrays["params/encoder/kernel1"] = arrays["params/encoder/kernel1"].astype(np.int8)
    write_weights(folder / "model.safetensors", arrays)
    edit(folder, sha256=file_sha256(folder / "model.safetensors"))
    with pytest.raises(UserError, match=r"params/encoder/kernel1 in .* is of int8"):
        load(folder)


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_a_file_of_something_else(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(UserError, match="there is no file"):
        read_weights(path)
    path.write_bytes(b"nothing of the kind, but long enough to hold a header")
    with pytest.raises(UserError, match="damaged"):
        read_weights(path)


def test_an_npz_of_objects_is_not_opened(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="damaged"):
        read_weights(tmp_path / "a.npz")
