"""Features of files and arrays in every form equal the model's output on each alone."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import sys

import jax
import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image

from configs import image_fashion_mnist
from cpc import models
from cpc.data import read_all, read_folder
from cpc.evaluate.embeddings import continue_mirrored
from cpc.models import features
from cpc.types import UserError
from experiments import embed
from experiments.embed import open_output
from experiments.kinds.image import embed as images_embed
from experiments.kinds.image import kind as image
from experiments.kinds.image.data import preprocess
from experiments.kinds.registry import CONTRASTIVE, check_input
from experiments.training.sequences import make_embed_long

RATE = 16_000
#: Frames of 10 ms, of which the last two go in chunks of 50: the last one has one, few to mirror.
LENGTHS = {"ann/a": 5, "ann/b": 30, "bob/c": 28, "bob/d": 60, "e": 101}


def draw(module, x):
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    return jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape).astype("f"), shapes)


def audio_model(
    padding="causal", rms=0.05, context=None, encoder=models.ConvEncoder, directions=("forward",)
):
    parts = encoder(8, padding=padding), context or models.GRU(6), models.LinearPredictor(2, 8)
    module = models.CPC(*parts, directions=directions)
    given = {"kind": "audio", "shape": [1280], "sample_rate_hz": RATE, "rms": rms}
    return models.Pretrained(module, draw(module, np.zeros((1, 1280), "f")), given)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    root = tmp_path_factory.mktemp("recordings")
    for number, (name, frames) in enumerate(LENGTHS.items()):
        path = root / f"{name}.flac"
        path.parent.mkdir(exist_ok=True)
        sound = np.random.default_rng(number).normal(size=frames * 160 + 7 * number)
        soundfile.write(path, 0.02 * (1 + number) * sound, RATE)
    return root


@pytest.fixture(autouse=True)
def started(monkeypatch):
    monkeypatch.setattr(embed.cluster, "start", lambda device: None)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(features, "CHUNK_SAMPLES", 50 * 160)
    monkeypatch.setattr(features, "BATCH_SAMPLES", 200 * 160)


def embed_to(output, pretrained, root, *layers):
    layers = layers or ("c",)
    said, skipped = [], []
    embed_files = CONTRASTIVE[pretrained.input["kind"]].embed_files
    embedding = embed_files(pretrained, root, layers, skipped)
    with open_output(str(output), layers, embedding.frame_seconds) as write:
        embed.write_all(embedding, write, skipped, root, said.append)
    return said, skipped


def test_samples_that_are_no_whole_frame_fit_the_batch(tmp_path, small_chunks):
    """A causal encoder sees nothing beyond, so the batch ends with the longest's last frame."""
    for number in (3200, 3359):
        soundfile.write(tmp_path / f"{number}.wav", 0.1 * np.ones(number), RATE)
    _, skipped = embed_to(tmp_path / "features.npz", audio_model("causal"), tmp_path)
    made = np.load(tmp_path / "features.npz")
    assert (skipped, made["3200"].shape, made["3359"].shape) == ([], (20, 6), (20, 6))


@pytest.mark.parametrize("stride", [1, 5, 160, 800, 5000, 10**6])
def test_batches_of_any_frame_distance(stride):
    """Each recording fits its batch and fills most of it, also with a single frame."""
    samples = [1, 2000, 30_000, 400_000, 480_000, 2_000_000]
    groups, long = models.group_signals(samples, stride)
    assert sorted([*long, *(index for _, own in groups for index in own)]) == [*range(6)]
    for length, own in groups:
        for index in own:
            frames = -(-samples[index] // stride)
            assert frames <= length <= max(frames + 1, 1.25 * frames, 2560 // stride)


@pytest.mark.parametrize(("layer", "padding", "context"), [
    ("z2", "valid", None), ("c1", "causal", models.GRU(6, 2)),
    ("c2", "same", models.CausalConv(6, 3)),
])  # fmt: skip
def test_a_layer_of_each_file_with_the_times_of_its_own_frames(
    recordings, tmp_path, small_chunks, layer, padding, context
):
    """Streamed, in batches, against the module's layers on the whole by hand."""
    pretrained = audio_model(padding, context=context)
    models.save(tmp_path / "model", pretrained)
    output = tmp_path / "features.npz"
    embed.run(str(tmp_path / "model"), str(recordings), str(output), layer)
    made, whole = np.load(output), read_folder(recordings)
    assert sorted(made.files) == sorted([*LENGTHS, "times_seconds"])
    encoder = pretrained.module.encoder
    params = jax.tree.map(jax.numpy.asarray, pretrained.variables["params"])
    number = int(layer[1]) if layer[0] == "z" else len(encoder.kernels)
    stride = int(np.prod(encoder.strides[:number]))
    times = (np.arange(len(made["e"])) + 0.5) * stride / RATE
    np.testing.assert_allclose(made["times_seconds"], times)

    @jax.jit
    def by_hand(x):
        y = x[None, :, None]
        for i in range(number):
            w = params["encoder"][f"kernel{i}"]
            y = jax.lax.conv_general_dilated(
                y, w, encoder.strides[i : i + 1], encoder.pads[i : i + 1],
                dimension_numbers=("NWC", "WIO", "NWC"),
            )  # fmt: skip
            y = jax.nn.relu(y + params["encoder"][f"bias{i}"])
        if layer == "c1":  # that the second layer's input is the first one's output
            first = {k: v for k, v in params["context"].items() if k.endswith("0")}
            y = models.GRU(6).apply({"params": first}, y)
        elif layer == "c2":
            y = models.CausalConv(6, 2).apply({"params": params["context"]}, y)
        return y[0]

    for name in ("ann/a", "ann/b", "e"):  # the first is short, the last in chunks
        sound = read_all(whole, whole.names.index(pathlib.Path(name).name))
        y, frames = by_hand(continue_mirrored(sound, len(sound) + 480)), len(sound) // stride
        assert (made[name].shape, made[name].dtype) == ((frames, y.shape[-1]), np.float32)
        np.testing.assert_allclose(made[name], y[:frames], rtol=1e-5, atol=3e-6)


def quantized(width, padding):
    return models.QuantizedEncoder(models.LogMelEncoder(6, padding=padding), 9, width)


def test_codes_of_each_file_are_those_of_its_latents(recordings, tmp_path, small_chunks):
    """Numbers of the vectors that z are, of recordings whole and in chunks."""
    pretrained = audio_model("same", encoder=quantized)
    inner = pretrained.variables["params"]["encoder"]["encoder"]
    plain = pretrained.module.encoder.encoder.apply(
        {"params": jax.tree.map(jax.numpy.asarray, inner)},
        jax.random.normal(jax.random.key(0), (1, 9 * 160)) / 20,
    )
    dense = pretrained.variables["params"]["encoder"]["project"]
    own = {"counts": np.ones(9, "f"), "sums": plain[0] @ dense["kernel"] + dense["bias"]}
    pretrained.variables["codebook"]["encoder"].update(own)
    models.save(tmp_path / "model", pretrained)
    for what in ("codes", "z"):
        output = tmp_path / f"{what}.npz"
        embed.run(str(tmp_path / "model"), str(recordings), str(output), what)
    codes, z = (np.load(tmp_path / f"{what}.npz") for what in ("codes", "z"))
    vectors = np.asarray(pretrained.variables["codebook"]["encoder"]["sums"])
    assert set(codes) == set(z)
    for name in set(z) - {"times_seconds"}:
        assert codes[name].shape == (len(z[name]), 1)
        np.testing.assert_allclose(vectors[codes[name][:, 0].astype(int)], z[name], rtol=1e-4)
    assert len(np.unique(np.concatenate([codes[name] for name in LENGTHS]))) > 1


def test_what_cannot_be_read_is_skipped_and_listed(tmp_path, small_chunks, capsys):
    """And of damaged sound what decodes is embedded, and said."""
    root = tmp_path / "in"
    root.mkdir()
    sound = np.random.default_rng(0).normal(size=4 * RATE) * 0.1
    hole = np.where(np.arange(len(sound)) == 9000, np.nan, sound)
    for name, samples in {
        "good.wav": sound[:9000], "good.flac": sound[:9000], "hole.wav": hole, "cut.mp3": sound,
        "half.wav": sound[:20_000], "times_seconds.wav": sound[:9000],
    }.items():  # fmt: skip
        soundfile.write(root / name, samples, RATE, "FLOAT" if name == "hole.wav" else None)
    for name in ("cut.mp3", "half.wav"):
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[: len(content) // 2])
    (root / "noise.mp3").write_bytes(b"no sound at all")
    (root / "link").symlink_to(".")
    said, skipped = embed_to(tmp_path / "out.npz", audio_model(), root)
    reasons = {pathlib.Path(name).name: reason for name, reason in skipped}
    assert sorted(reasons) == ["hole", "link", "noise"]
    assert "NaN" in reasons["hole"]
    assert sum(line.startswith("skipped ") for line in said) == 3
    assert said[-1].startswith("5 files, 3 skipped, ")
    assert said[-1].endswith(" h audio/s")
    assert float(said[-1].split(", ")[2].split()[0]) > 0
    made, said = np.load(tmp_path / "out.npz"), capsys.readouterr().out
    assert sorted(made.files) == [
        "cut", "good.flac", "good.wav", "half", "times_seconds", "times_seconds.features",
    ]  # fmt: skip
    assert made["half"].shape == (62, 6)
    assert "half: kept, but truncated: its header declares 40,000 bytes" in said
    assert 150 < len(made["cut"]) < 250
    assert re.search(r"cut: kept, but [\d,]+ of [\d,]+ samples decode", said)
    assert made["times_seconds"].shape == made["cut"].shape[:1]
    assert made["times_seconds.features"].shape == (56, 6)


def test_a_folder_of_nothing_leaves_no_file(tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"?")
    with pytest.raises(UserError, match=r"all files in .* are unreadable .*bad.wav is not audio"):
        embed_to(tmp_path / "out.npz", audio_model(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.wav"]
    (tmp_path / "bad.wav").unlink()
    with pytest.raises(UserError, match=r"no file to embed at any depth: .* flac, .*, mp3"):
        embed_to(tmp_path / "out.npz", audio_model(), tmp_path)
    with pytest.raises(UserError, match="does not exist: pass a file or folder"):
        embed_to(tmp_path / "out.npz", audio_model(), tmp_path / "none")


def test_images_get_their_grids(tmp_path, monkeypatch):
    """Files and arrays are embedded; bad files are skipped."""
    monkeypatch.setattr(images_embed, "BATCH_IMAGES", 2)
    config = image_fashion_mnist.get_config()
    config.model.update(width=8, context_width=8, context_layers=1)
    model = image.build_model(config)
    variables = draw(model.module, np.zeros((1, 6, 6, 8, 8, 1), "f"))
    given = {"kind": "image", "shape": [6, 6, 8, 8, 1]}
    about = {"config": json.loads(config.to_json())}
    pretrained = models.Pretrained(model.module, variables, given, about)
    root, rng = tmp_path / "in", np.random.default_rng(0)
    (root / "cats").mkdir(parents=True)
    pixels, colored = (rng.integers(0, 256, size, np.uint8) for size in ((3, 28, 28), (40, 32, 3)))
    for number, picture in enumerate((*pixels, colored)):
        Image.fromarray(picture).save(root / "cats" / f"{number}.png")
    (root / "bad.png").write_bytes(b"?")
    (root / "x.png").write_bytes((root / "cats" / "0.png").read_bytes())
    (root / "x.png").rename(root / os.fsdecode(b"caf\xe9.png"))
    (root / "zero.png").symlink_to("/dev/zero")
    for name in ("out.npz", "out.arrow"):
        _, skipped = embed_to(tmp_path / name, pretrained, root)
    assert [name for name, _ in skipped] == ["bad", "caf\\udce9", "zero"]
    made = np.load(tmp_path / "out.npz")
    assert sorted(made.files) == ["cats/0", "cats/1", "cats/2", "cats/3"]
    x = preprocess(config, {"x": jax.numpy.asarray(pixels[..., None])}, jax.random.key(0), False)
    wanted = jax.jit(model.embed)(variables, x["x"])
    for number in range(3):
        np.testing.assert_allclose(made[f"cats/{number}"], wanted[1][number], rtol=1e-5, atol=1e-5)
    row = pa.ipc.open_file(str(tmp_path / "out.arrow")).read_all().to_pylist()[1]
    wanted_row = made[row["name"]].reshape(36, 16)  # down and up
    np.testing.assert_array_equal(np.float32(row["features"]), wanted_row)
    function = models.embed_with(pretrained)
    for x in (colored, colored / 255):
        np.testing.assert_allclose(function(x)[1], made["cats/3"], rtol=1e-5, atol=1e-5)
    for found, expected in zip(function(pixels[..., None]), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert function(np.zeros((2, 6, 6, 8, 8, 1), "f"))[0].shape[:3] == (2, 6, 6)
    for wrong in (np.zeros((2, 6, 6, 8, 9, 1), "f"), np.full((28, 28), 9.0)):
        with pytest.raises(UserError):
            function(wrong)
    with pytest.raises(UserError, match="export"):
        models.embed_with(pretrained._replace(about={}))(colored)


@pytest.mark.parametrize(("match", "arguments"), [
    ("--workdir, --input and --output", (None, "in", "out.npz")),
    (r"config\.json", ("run", "in", "out.npz")),
    ("quantized", ("model", "in", "out.npz", "codes")),
    (r"z1, .*, z5, z, c1, c.*'z6'", ("model", "in", "out.npz", "z6")),
    (r"a\.txt.*wav", ("model", "a.txt", "out.npz", "z1,c")),
])  # fmt: skip
def test_mistakes_are_sentences(tmp_path, monkeypatch, arguments, match):
    monkeypatch.chdir(tmp_path)
    models.save(tmp_path / "model", audio_model())
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match=match):
        embed.run(*arguments)


def test_outputs_that_there_are_not(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for ending, match in ((".csv", r"features\.csv"), (".arrow", "pip install pyarrow")):
        output = open_output(str(tmp_path / f"features{ending}"), ["c"], {"c": 0.01})
        with pytest.raises(UserError, match=match), output:
            pass


def test_unusable_descriptions_of_a_model_are_rejected():
    for given, missing in (
        ({"kind": "smells", "shape": [1]}, "audio, image, series"),
        ({"kind": "audio", "shape": [1280], "rms": 0.1}, "sample_rate_hz"),
        ({"kind": "series", "shape": [8, 1]}, "rate_hz, standardize, step_label"),
    ):
        with pytest.raises(UserError, match=missing):
            check_input(audio_model()._replace(input=given), "shared")
    given = {"kind": "image", "shape": [3, 3, 8, 8, 1]}
    for recorded in (3, {"data": 3}, {"data": {"size": 10**12}}, {}):  # {}: other patches
        with pytest.raises(UserError):
            images_embed.read_config(
                audio_model()._replace(input=given, about={"config": recorded})
            )


def test_features_of_a_long_recording_in_pieces_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr("cpc.models.features.CHUNK_SAMPLES", 20 * 160)
    made = audio_model("same")
    model, (_, after) = models.make_model(made.module), made.module.encoder.frames_around
    x = 0.1 * np.random.default_rng(0).standard_normal(61 * 160 + 30).astype("f")
    padded = continue_mirrored(x, (61 + after) * 160)
    z, c = (np.asarray(one)[0, :61] for one in jax.jit(model.embed)(made.variables, padded[None]))
    whole = {"z": z, "c": c, "zc": np.concatenate([z, c], axis=1)}
    for kinds, expected in whole.items():
        found = make_embed_long(model, made.variables, kinds)(x)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    both = dataclasses.replace(made.module, directions=("forward", "backward"))
    assert make_embed_long(models.make_model(both), {}, "c") is None  # it sees the end


def embed_files(pretrained, path, *layers):
    found = CONTRASTIVE[pretrained.input["kind"]].embed_files(pretrained, path, layers, [])
    return {name: made for name, made, _ in found.features}


ALL = tuple(f"z{number}" for number in range(1, 6)), ("c1", "c2")


@pytest.mark.parametrize(
    ("rms", "directions", "chunk", "names"),
    [(None, ("forward",), 50 * 160, "abcd"), (0.05, ("forward", "backward"), 480_000, "d")],
)
def test_sound(tmp_path, monkeypatch, rms, directions, chunk, names):
    """Several formats and rates match to the last frame, whole or in chunks."""
    monkeypatch.setattr(features, "CHUNK_SAMPLES", chunk)
    pretrained = audio_model("same", rms, models.GRU(6, 2), directions=directions)
    rng, files = np.random.default_rng(1), [
        ("a", 44_100, "PCM_16", 9000), ("b", 16_000, "PCM_U8", 5033), ("c", 8000, "FLOAT", 6001),
        ("d", 16_000, "PCM_24", 890),
    ]  # fmt: skip
    files = [one for one in files if one[0] in names]
    for number, (name, rate, subtype, size) in enumerate(files):
        sound = 0.04 * (1 + number) * rng.normal(size=size) + 0.1
        soundfile.write(tmp_path / f"{name}.wav", sound, rate, subtype)
    wanted = embed_files(pretrained, tmp_path, *ALL[0], *ALL[1])
    function = models.embed_with(pretrained)
    with pytest.raises(UserError, match="channels"):
        function(np.zeros((1700, 2)))
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
        if name == "a":
            both = function([x, x[: len(x) // 2]], sample_rate_hz=rate)
            for layer, (whole, half) in zip("zc", both, strict=True):
                np.testing.assert_allclose(whole, found[layer], rtol=1e-5, atol=1e-5)
                assert len(half) == len(x) // 2 * 16_000 // rate // 160


def test_series(tmp_path):
    encoder = models.ConvEncoder(8, (4,), (2,), padding="same", channels=3)
    module = models.CPC(encoder, models.GRU(6), models.LinearPredictor(2, 8))
    given = {"kind": "series", "shape": [40, 3], "rate_hz": None, "standardize": True}
    variables = draw(module, np.zeros((1, 40, 3), "f"))
    pretrained = models.Pretrained(module, variables, {**given, "step_label": ""})
    x = np.random.default_rng(0).normal(size=(41, 3)) * [1, 50, 2] + 9
    np.save(tmp_path / "a.npy", x)
    wanted = embed_files(pretrained, tmp_path / "a.npy", "z", "c")["a"]
    function = models.embed_with(pretrained)
    alone = [[row[0] for row in function(given)] for given in ([x], x[None])]
    for found in (function(x), *alone):
        for layer, array in zip("zc", found, strict=True):
            np.testing.assert_allclose(array, wanted[layer], rtol=1e-5, atol=1e-5)
    for wrong, options in ((np.zeros((3, 41)), {}), (x, {"sample_rate_hz": 16_000})):
        with pytest.raises(UserError, match="sample_rate_hz" if options else "swap"):
            function(wrong, **options)
    del given["standardize"]
    with pytest.raises(UserError, match="standardize"):
        models.embed_with(pretrained._replace(input=given))


def test_layers_are_named_in_a_list():
    module = audio_model(context=models.GRU(6, 2)).module
    assert embed.parse_layers("all", module) == (*ALL[0], *ALL[1])
    assert embed.parse_layers("z1, z,codes,z1", module) == ("z1", "z", "codes")
    for wrong in ("z9", "z1,x", ",", ""):
        with pytest.raises(UserError, match="--features must"):
            embed.parse_layers(wrong, module)


@pytest.mark.parametrize("output", ["a.npz", "a.arrow", "tree/"])
def test_several_layers_are_told_apart_in_every_form(tmp_path, output):
    rng = np.random.default_rng(0)
    made = {"z1": np.float32(rng.normal(size=(6, 2))), "c": np.float32(rng.normal(size=(3, 4)))}
    frames = {"z1": 0.005, "c": 0.01}
    with open_output(f"{tmp_path}/{output}", list(made), frames) as write:
        write("ann/a", made)
    if output == "a.npz":
        found = np.load(tmp_path / output)
        arrays = {layer: found[f"{layer}/ann/a"] for layer in made}
        times = {layer: found[f"{layer}/times_seconds"] for layer in made}
        assert len(found) == 4
    elif output == "a.arrow":
        (row,) = pa.ipc.open_file(str(tmp_path / output)).read_all().to_pylist()
        assert row["name"] == "ann/a"
        arrays, times = row, {layer: row[f"{layer}_times_seconds"] for layer in made}
    else:
        arrays, times = {}, {}
        for layer in made:
            arrays[layer] = np.load(tmp_path / "tree" / layer / "ann" / "a.npy")
            told = json.loads((tmp_path / "tree" / layer / "times.json").read_text())
            index = np.arange(len(made[layer]))
            times[layer] = told["first_seconds"] + told["frame_seconds"] * index
    for layer, array in made.items():
        np.testing.assert_array_equal(np.float32(arrays[layer]), array)
        wanted = (np.arange(len(array)) + 0.5) * frames[layer]
        np.testing.assert_allclose(times[layer], wanted)


def test_one_file_is_an_input(tmp_path):
    models.save(tmp_path / "model", audio_model())
    path, output = tmp_path / "Größe 2.ogg", str(tmp_path / "a.npz")
    soundfile.write(path, 0.1 * np.ones(1600), 16_000)
    embed.run(str(tmp_path / "model"), str(path), output, "z1,c")
    assert np.load(output)["z1/Größe 2"].shape == (320, 8)


def test_pooled_features_are_means_over_frames(recordings, tmp_path):
    models.save(tmp_path / "model", audio_model("causal"))
    run = functools.partial(embed.run, str(tmp_path / "model"), str(recordings))
    run(str(tmp_path / "frames.npz"), "z1,c")
    run(str(tmp_path / "means.npz"), "z1,c", pool="mean")
    frames, means = (np.load(tmp_path / f"{name}.npz") for name in ("frames", "means"))
    assert set(means) == {name for name in frames if "times" not in name}
    for name, vector in means.items():
        np.testing.assert_allclose(vector, frames[name].mean(axis=0), rtol=1e-5, atol=1e-6)
