"""Files of torch.save: those of torch itself, and those that mean harm, written by hand."""

import io
import os
import pathlib
import pickle
import sys
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from cpc.models import load_cpc_audio, make_model, torch_file
from cpc.models.torch_file import read_checkpoint, read_torch
from cpc.models.torch_pickle import read_pickle
from cpc.models.weights import read_weights
from cpc.types import UserError
from tests.torch_archive import (
    members,
    name,
    number,
    tensor,
    text,
    tuple_of,
    write_sequence,
    write_torch,
    write_zip,
)

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
EXPECTED = np.load(GOLDENS / "checkpoint.npz")
CONTENT = {
    "config": {"a": 1, "b": 2.5, "c": None, "d": True, "e": [-1, "x"], "f": (1, (2,))},
    "weights": {
        "float": np.arange(6, dtype="f4").reshape(2, 3),
        "double": np.array([1.5, -2.0]),
        "half": np.array([[0.5], [65504]], "f2"),
        "bfloat16": np.array([1.5, -3e38], jnp.bfloat16),
        "long": np.array(-(2**40)),
        "int": np.array([2**31 - 1], "i4"),
        "short": np.array([-5], "i2"),
        "char": np.array([-128], "i1"),
        "byte": np.array([255], "u1"),
        "bool": np.array([True, False]),
        "empty": np.zeros((0, 3), "f4"),
    },
}


def embed(pretrained):
    x = jnp.asarray(EXPECTED["x"])
    return make_model(pretrained.module).embed(pretrained.variables, x)


@pytest.mark.parametrize("file", ["hub", "training"])
def test_what_torch_wrote_computes_what_torch_computed(file):
    """Whether by torch of today or as it was before 1.6."""
    path = GOLDENS / f"checkpoint_{file}.pt"
    pretrained = load_cpc_audio(path)
    assert (pretrained.module.context.num_layers, pretrained.input["rms"]) == (2, None)
    z, c = embed(pretrained)
    np.testing.assert_allclose(z, EXPECTED["z"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c, EXPECTED["c"], rtol=1e-5, atol=1e-5)
    assert read_weights(path).keys() == read_checkpoint(path)[0].keys()


def test_all_of_a_training_checkpoint_is_read():
    content = read_torch(GOLDENS / "checkpoint_training.pt")
    hub = read_torch(GOLDENS / "checkpoint_hub.pt")
    assert content["args"] == hub["config"]
    assert type(content["args"]) is dict
    assert content["cpcCriterion"]["weight"].dtype == np.float16
    assert content["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert content["optimizer"]["state"][0]["exp_avg"].shape == (4, 1, 10)
    for entries in (content["gEncoder"], content["best"]):
        for key, array in hub["weights"].items():
            np.testing.assert_array_equal(entries[key], array)


@pytest.mark.parametrize("order", ["little", "big", "sequence"])
def test_every_type_comes_back(tmp_path, order):
    path = tmp_path / "a.pt"
    if order == "sequence":
        write_sequence(path, CONTENT)
    else:
        write_torch(path, CONTENT, order)
    found = read_torch(path)
    assert found["config"] == CONTENT["config"]
    assert list(found["weights"]) == list(CONTENT["weights"])
    for key, array in CONTENT["weights"].items():
        assert found["weights"][key].dtype == array.dtype
        np.testing.assert_array_equal(found["weights"][key], array)


def test_views_of_one_storage(tmp_path):
    """Transposed, with an offset and with gaps, in a parameter, an OrderedDict and a Namespace."""
    transposed = tensor("0", "Float", 12, 0, (4, 3), (1, 4))
    gaps = tensor("0", "Float", 12, 5, (2, 2), (4, 2))
    ordered = name("collections.OrderedDict") + b")R"
    parameter = name("torch._utils._rebuild_parameter") + tuple_of(gaps, b"\x88", ordered) + b"R"
    versions = b"}" + text("_metadata") + b"}s"  # an attribute that torch gives state dicts
    weights = ordered + text("t") + transposed + b"s" + text("g") + parameter + b"s" + versions
    space = name("argparse.Namespace") + b")\x81}" + text("x") + number(3) + b"sb"
    content = {"weights": weights + b"b", "config": space, "all": np.arange(12, dtype="f4")}
    written = members(content)
    found = read_torch(write_zip(tmp_path / "a.pt", written))
    whole = np.arange(12, dtype="f4").reshape(3, 4)
    np.testing.assert_array_equal(found["weights"]["t"], whole.T)
    np.testing.assert_array_equal(found["weights"]["g"], whole[1:, 1::2])
    assert found["config"] == {"x": 3}
    assert list(found["weights"]) == ["t", "g"]


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_is_called(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    harmful = pickle.dumps({"weights": Harm()}, protocol=protocol)
    path = write_zip(tmp_path / "a.pt", {"data.pkl": harmful})
    with pytest.raises(UserError, match=rf"cannot read .*a.pt: it asks for '{os.name}.mkdir'"):
        read_torch(path)
    assert not (tmp_path / "harmed").exists()
    pickle.loads(harmful)
    assert (tmp_path / "harmed").exists()  # it would have been


@pytest.mark.parametrize(
    "full",
    ["builtins.eval", "torch.load", "torch._utils._rebuild_tensor", "cpc.model.CPCModel",
     "numpy.core.multiarray._reconstruct", "collections.deque", "m." + "x" * 9999],
)  # fmt: skip
def test_other_names_are_refused_by_name_and_nothing_is_imported(tmp_path, full):
    before = {*sys.modules}
    with pytest.raises(UserError, match=f"asks for '{full[:200]}', and files are read here as dat"):
        read_torch(write_torch(tmp_path / "a.pt", {"weights": name(full)}))
    assert {*sys.modules} == before


WHOLE = ("0", "Float", 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (tensor(*WHOLE, 1, (4,), (1,)), "outside of its 4 numbers"),
        (tensor(*WHOLE, 0, (2, 2), (3, 1)), "outside of its 4 numbers"),
        (tensor(*WHOLE, 0, (2**31 - 1,), (0,)), "more than .* numbers"),
        (tensor(*WHOLE, -1, (1,), (1,)), "are no sizes"),
        (tensor(*WHOLE, 0, (2,), (-1,)), "are no sizes"),
        (tensor(*WHOLE, 0, (2, 2), (1,)), "shorter"),
        (tensor("0", "Float", 40, 0, (4,), (1,)), "two types or sizes"),
        (tensor("0", "Double", 4, 0, (4,), (1,)), "two types or sizes"),
        (tensor("1", "Float", 4, 0, (4,), (1,)), "archive/data/1"),
        (tensor("../../x", "Float", 4, 0, (4,), (1,)), "archive/data/../../x"),
        (name("torch.FloatStorage") + b")R", "FloatStorage"),
        (name("torch._utils._rebuild_tensor_v2") + b")R", "argument"),
        (text("x") + b"}b", "str where dict"),
        (b"}" + tuple_of(number(1)) + number(2) + b"s", "tuple where str"),
        (b"h\x09", "9"),
        (b"0000000", "opcode POP"),
        (b"(" * 9 + b"x", "damaged"),
        (b"\x80\x02]q\x00h\x00a", "refers to itself"),
        (b"]" * 5000 + b"a" * 4999, "recursion"),
    ],
)
def test_what_cannot_be_is_damaged(tmp_path, wrong, match):
    written = members({"a": np.arange(4, dtype="f4"), "b": wrong})
    with pytest.raises(UserError, match=rf"a.pt.*{match}"):
        read_torch(write_zip(tmp_path / "a.pt", written))


@pytest.mark.slow
def test_doubling_containers_and_tensors_end(tmp_path, monkeypatch):
    """A thousand bytes that mean 2 to the 100 entries, and tensors that share one storage."""
    doubling = b"]" + b"".join(b"q" + bytes([i]) + b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e"
                               for i in range(100))  # fmt: skip
    with pytest.raises(UserError, match="refers to itself"):
        read_torch(write_torch(tmp_path / "a.pt", {"a": tuple_of(doubling)}))
    monkeypatch.setattr(torch_file, "MAX_EXPANDED", 15)
    same = {str(i): tensor("0", "Float", 4, 0, (4,), (1,)) for i in range(5)}
    with pytest.raises(UserError, match="more than 16 numbers"):
        read_torch(write_torch(tmp_path / "a.pt", {"a": np.arange(4, dtype="f4"), **same}))


def test_an_expanded_tensor_has_its_number_everywhere(tmp_path):
    """As `torch.ones(1).expand(4)` and a row that is repeated."""
    content = {
        "a": np.array([2.0, 3.0], "f4"),
        "one": tensor("0", "Float", 2, 1, (4,), (0,)),
        "rows": tensor("0", "Float", 2, 0, (3, 2), (0, 1)),
    }
    found = read_torch(write_torch(tmp_path / "a.pt", content))
    np.testing.assert_array_equal(found["one"], [3.0] * 4)
    np.testing.assert_array_equal(found["rows"], [[2.0, 3.0]] * 3)


def test_small_files_that_mean_much_are_refused_at_once(tmp_path):
    cycle = b"]q\x00(" + b"h\x00" * 1000 + b"e"
    with pytest.raises(UserError, match="refers to itself"):
        read_torch(write_torch(tmp_path / "a.pt", {"a": cycle}))
    nest = b")q\x00" + b"".join(
        b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60)
    )
    place = tuple_of(text("storage"), name("torch.FloatStorage"), text("0"), text("cpu"), number(1))
    sizes = tuple_of(place + b"Q", number(0), b"h\x3c", b"h\x3c", b"\x89", b"N")
    wrong = tuple_of(nest, name("torch._utils._rebuild_tensor_v2") + sizes + b"R")
    with pytest.raises(UserError, match="are no sizes") as error:
        read_torch(write_torch(tmp_path / "a.pt", {"a": wrong}))
    assert len(str(error.value)) < 2000


def test_archives_are_checked_before_they_are_read(tmp_path):
    written = members({"weights": {"a": np.zeros(10**6, "f4")}})
    path = write_zip(tmp_path / "a.pt", written, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000
    with pytest.raises(UserError, match=r"'archive/data.pkl' is compressed"):
        read_torch(path)
    write_zip(path, {"a/data.pkl": b"N.", "b/data.pkl": b"N."})
    with pytest.raises(UserError, match=r"has 2 members data.pkl"):
        read_torch(path)
    write_zip(path, {"data.pkl": b"}" * (5 << 20) + b"."})
    with pytest.raises(UserError, match="too large"):
        read_torch(path)
    write_zip(path, {**written, "byteorder": b"middle"})
    with pytest.raises(UserError, match="byte order"):
        read_torch(path)
    # Two members of the directory that have the same bytes.
    write_zip(path, members({"weights": {"a": np.zeros(99), "b": np.ones(99)}}))
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        places = [file.getinfo(f"archive/data/{i}").header_offset for i in range(2)]
        directory = raw.index(b"PK\1\2")
    entry = directory + raw[directory:].index(b"archive/data/1") - 4
    assert int.from_bytes(raw[entry : entry + 4], "little") == places[1]
    path.write_bytes(raw[:entry] + places[0].to_bytes(4, "little") + raw[entry + 4 :])
    with pytest.raises(UserError, match="damaged"):
        read_torch(path)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_torch, write_sequence])
def test_every_cut_and_flipped_file_is_a_sentence(tmp_path, write):
    path = write(tmp_path / "a.pt", {"weights": {"a": np.arange(3, dtype="f4")}, "n": [1.5, "x"]})
    raw = path.read_bytes()
    for end in range(len(raw)):
        path.write_bytes(raw[:end])
        with pytest.raises(UserError, match=r"a.pt"):
            read_torch(path)
    rng = np.random.default_rng(0)
    for place in rng.integers(len(raw), size=600).tolist():
        changed = bytearray(raw)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            read_torch(path)  # a flipped bit of a number, where no checksum is
        except UserError as error:
            assert "a.pt" in str(error)  # noqa: PT017 (it may as well be read)


def test_files_of_other_kinds_are_named(tmp_path):
    path = tmp_path / "a.pt"
    for content, match in (
        (b"sys_info" + bytes(504), "of torch before 0.2: load it with torch.load"),
        (pickle.dumps({"a": 1}), "first bytes"),
        (b"", "first bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=match):
            read_torch(path)
    with pytest.raises(UserError, match=r"there is no file .*b.pt: give a file of weights"):
        load_cpc_audio(tmp_path / "b.pt")
    with pytest.raises(UserError, match=r"one that ends in .safetensors, .npz, .pt, .pth"):
        load_cpc_audio(tmp_path / "b.bin")
    with pytest.raises(UserError, match="holds no named arrays, by itself or under weights, gEnc"):
        read_checkpoint(write_torch(path, {"weights": {"a": 1}, "step": 3}))
    write_torch(path, {"conv.weight": np.zeros(3, "f4"), "step": 3})
    assert list(read_checkpoint(path)[0]) == ["conv.weight"]
    with pytest.raises(UserError, match=r"has no entry gEncoder... or gAR"):
        load_cpc_audio(path)


def test_of_a_checkpoint_the_network_alone_is_read_and_its_direction_is_checked(tmp_path):
    hub = read_torch(GOLDENS / "checkpoint_hub.pt")
    path = tmp_path / "a.pt"
    hub["weights"]["speakerEmb.weight"] = np.zeros((2, 2), "f4")
    expected = embed(load_cpc_audio(GOLDENS / "checkpoint_hub.pt"))[1]
    found = embed(load_cpc_audio(write_torch(path, hub)))[1]
    np.testing.assert_array_equal(found, expected)
    hub["config"]["cpc_mode"] = "reverse"
    with pytest.raises(UserError, match="trained with cpc_mode 'reverse': its contexts do not"):
        load_cpc_audio(write_torch(path, hub))


def test_a_pickle_ends_where_it_ends():
    stream = io.BytesIO(pickle.dumps([1], protocol=2) + b"rest")
    assert read_pickle(stream) == [1]
    assert stream.read() == b"rest"
