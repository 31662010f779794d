"""A loaded model makes of arrays the features that the command makes of files with that content."""

import json

import jax
import numpy as np
import pytest
import soundfile
from PIL import Image

from configs import image_fashion_mnist
from cpc import models
from cpc.models import features
from cpc.types import UserError
from experiments import embed
from experiments.embed import open_output
from experiments.kinds.image import kind as image
from experiments.kinds.registry import CONTRASTIVE


def draw(module, x):
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    return jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape).astype("f"), shapes)


def audio_model(rms=0.05, directions=("forward",)):
    module = models.CPC(
        models.ConvEncoder(8, padding="same"),
        models.GRU(6, 2),
        models.LinearPredictor(2, 8),
        directions=directions,
    )
    given = {"kind": "audio", "shape": [1280], "sample_rate_hz": 16_000, "rms": rms}
    return models.Pretrained(module, draw(module, np.zeros((1, 1280), "f")), given)


def embed_files(pretrained, path, *layers):
    found = CONTRASTIVE[pretrained.input["kind"]].embed_files(pretrained, path, layers, [])
    return {name: made for name, made, _ in found.features}


ALL = tuple(f"z{number}" for number in range(1, 6)), ("c1", "c2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rms", "directions", "chunk"),
    [
        (0.05, ("forward",), 480_000),
        (None, ("forward",), 50 * 160),
        (0.05, ("forward", "backward"), 480_000),
    ],
)
def test_sound(tmp_path, monkeypatch, rms, directions, chunk):
    """Of several formats and rates, to the last frame, whole or in chunks."""
    monkeypatch.setattr(features, "CHUNK_SAMPLES", chunk)
    pretrained, rng = audio_model(rms, directions), np.random.default_rng(1)
    files = [
        ("a", 44_100, "PCM_16", 9000),
        ("b", 16_000, "PCM_U8", 5033),
        ("c", 8000, "FLOAT", 7001),
        ("d", 16_000, "PCM_24", 90),
    ]
    for number, (name, rate, subtype, size) in enumerate(files):
        sound = 0.04 * (1 + number) * rng.normal(size=size) + 0.1
        soundfile.write(tmp_path / f"{name}.wav", sound, rate, subtype)
    wanted = embed_files(pretrained, tmp_path, *ALL[0], *ALL[1])
    function = models.embed_with(pretrained)
    for name, rate, subtype, _ in files:
        dtype = {"PCM_16": "int16", "PCM_24": "int32"}.get(subtype, "float64")
        x, _ = soundfile.read(tmp_path / f"{name}.wav", dtype=dtype)
        if subtype == "PCM_U8":
            x = np.round(x * 128 + 128).astype(np.uint8)
        found = function.layers(x, sample_rate_hz=rate)
        assert found.keys() == {*ALL[0], *ALL[1], "z", "c"}
        for layer, array in wanted[name].items():
            np.testing.assert_allclose(found[layer], array, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found["z"], found["z5"])
        np.testing.assert_array_equal(found["c"], found["c2"])
        z, c = function([x, x[: len(x) // 2]], sample_rate_hz=rate)
        np.testing.assert_allclose(z[0], found["z"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(c[0], found["c"], rtol=1e-5, atol=1e-5)
        assert len(c[1]) == max(1, len(x) // 2 * 16_000 // rate // 160)


@pytest.mark.slow
def test_what_is_normalized_already(tmp_path):
    function = models.embed_with(audio_model())
    x = 0.1 * np.random.default_rng(0).normal(size=(2, 1700)).astype("f")
    wanted = function(x)
    scaled = x * (0.05 / x.std(axis=1, keepdims=True))
    for a, b in zip(function(scaled, normalize=False), wanted, strict=True):
        assert a.shape[:2] == (2, 10)
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)  # 16 bits of x
    with pytest.raises(UserError, match="channels"):
        function(x.T)


@pytest.mark.slow
def test_series(tmp_path):
    module = models.CPC(
        models.ConvEncoder(8, (4,), (2,), padding="same", channels=3),
        models.GRU(6),
        models.LinearPredictor(2, 8),
    )
    given = {"kind": "series", "shape": [40, 3], "rate_hz": None, "standardize": True}
    variables = draw(module, np.zeros((1, 40, 3), "f"))
    pretrained = models.Pretrained(module, variables, {**given, "step_label": ""})
    x = np.random.default_rng(0).normal(size=(41, 3)) * [1, 50, 2] + 9
    np.save(tmp_path / "a.npy", x)
    wanted = embed_files(pretrained, tmp_path / "a.npy", "z", "c")["a"]
    function = models.embed_with(pretrained)
    for found in (
        function(x),
        [row[0] for row in function([x])],
        [b[0] for b in function(x[None])],
    ):
        for layer, array in zip("zc", found, strict=True):
            np.testing.assert_allclose(array, wanted[layer], rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="swap"):
        function(np.zeros((3, 41)))
    with pytest.raises(UserError, match="sample_rate_hz"):
        function(x, sample_rate_hz=16_000)
    del given["standardize"]
    with pytest.raises(UserError, match="standardize"):
        models.embed_with(pretrained._replace(input=given))


@pytest.mark.slow
def test_images(tmp_path):
    config = image_fashion_mnist.get_config()
    config.model.width = config.model.context_width = 8
    config.model.context_layers = 1
    module = image.build_model(config).module
    given = {"kind": "image", "shape": [6, 6, 8, 8, 1]}
    variables = draw(module, np.zeros((1, 6, 6, 8, 8, 1), "f"))
    about = {"config": json.loads(config.to_json())}
    pretrained = models.Pretrained(module, variables, given, about)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    wanted = embed_files(pretrained, tmp_path, "z", "c")["a"]
    function = models.embed_with(pretrained)
    for x in (pixels, pixels / 255):
        for layer, array in zip("zc", function(x), strict=True):
            np.testing.assert_allclose(array, wanted[layer], rtol=1e-5, atol=1e-5)
    z, c = function(np.zeros((2, 28, 28, 1), np.uint8))
    assert (z.shape[:3], c.shape[:3]) == ((2, 6, 6), (2, 6, 6))
    assert function(np.zeros((2, 6, 6, 8, 8, 1), "f"))[0].shape == z.shape
    for wrong in (np.zeros((2, 6, 6, 8, 9, 1), "f"), np.full((28, 28), 9.0)):
        with pytest.raises(UserError):
            function(wrong)
    with pytest.raises(UserError, match="export"):
        models.embed_with(pretrained._replace(about={}))(pixels)


def test_layers_are_named_in_a_list():
    module = audio_model().module
    assert embed.parse_layers("all", module) == (*ALL[0], *ALL[1])
    assert embed.parse_layers("z1, z,codes,z1", module) == ("z1", "z", "codes")
    for wrong in ("z9", "z1,x", ",", ""):
        with pytest.raises(UserError, match="no layer"):
            embed.parse_layers(wrong, module)


@pytest.mark.parametrize("output", ["a.npz", "a.arrow", "tree/"])
def test_several_layers_are_told_apart_in_every_form(tmp_path, output):
    made = {"z1": np.ones((6, 2), "f"), "c": np.zeros((3, 4), "f")}
    with open_output(f"{tmp_path}/{output}", list(made), {"z1": 0.005, "c": 0.01}) as write:
        write("ann/a", made)
    if output == "a.npz":
        found = np.load(tmp_path / output)
        assert {*found} == {"z1/ann/a", "c/ann/a", "z1/times_seconds", "c/times_seconds"}
        assert (found["z1/ann/a"].shape, len(found["c/times_seconds"])) == ((6, 2), 3)
    elif output == "tree/":
        assert np.load(tmp_path / "tree/z1/ann/a.npy").shape == (6, 2)
        assert json.loads((tmp_path / "tree/c/times.json").read_text())["frame_seconds"] == 0.01
    else:
        pa = pytest.importorskip("pyarrow")
        (row,) = pa.ipc.open_file(str(tmp_path / output)).read_all().to_pylist()
        assert (row["name"], len(row["z1"]), len(row["c_times_seconds"])) == ("ann/a", 6, 3)


@pytest.mark.slow
def test_one_file_is_an_input(tmp_path, monkeypatch):
    monkeypatch.setattr(embed.cluster, "start", lambda device: None)
    models.save(tmp_path / "model", audio_model())
    soundfile.write(tmp_path / "Größe 2.ogg", 0.1 * np.ones(1600), 16_000)
    output = str(tmp_path / "a.npz")
    embed.run(str(tmp_path / "model"), str(tmp_path / "Größe 2.ogg"), output, "z1,c")
    assert np.load(output)["z1/Größe 2"].shape == (320, 8)
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match=r"a\.txt is not a file that the model takes.*wav"):
        embed.run(str(tmp_path / "model"), str(tmp_path / "a.txt"), output, "z1,c")
