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
from tests.experiments.test_export import draw, image_config

RATE = 16_000
#: Frames of 10 ms, of which the last two go in chunks of 50: the last one has one, few to mirror.
LENGTHS = {"ann/a": 5, "ann/b": 30, "bob/c": 28, "bob/d": 60, "e": 101}


def audio_model(
    padding="causal", rms=0.05, context=None, encoder=models.ConvEncoder, directions=("forward",)
):
    parts = encoder(8, padding=padding), context or models.GRU(6), models.LinearPredictor(2, 8)
    module = models.CPC(*parts, directions=directions)
    given = {"kind": "audio", "shape": [1280], "sample_rate_hz": RATE, "rms": rms}
    return models.Pretrained(module, draw(module, np.zeros((1, 1280), "f"), 0.3), given)


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
    """Streamed, in batches, against the shorter module on the whole."""
    pretrained = audio_model(padding, context=context)
    models.save(tmp_path / "model", pretrained)
    output = tmp_path / "features.npz"
    embed.run(str(tmp_path / "model"), str(recordings), str(output), layer)
    made, whole = np.load(output), read_folder(recordings)
    assert sorted(made.files) == sorted([*LENGTHS, "times_seconds"])
    module, variables = models.end_at(pretrained.module, pretrained.variables, layer)
    stride = module.encoder.stride
    times = (np.arange(len(made["e"])) + 0.5) * stride / RATE
    np.testing.assert_allclose(made["times_seconds"], times)

    @jax.jit
    def embed_whole(variables, x):
        z = module.encoder.apply(models.part_of(variables, "encoder"), x[None])
        if layer[0] == "z":
            return z[0]
        return module.context.apply(models.part_of(variables, "context"), z)[0]

    for name in ("ann/a", "ann/b", "e"):  # the first is short, the last in chunks
        sound = read_all(whole, whole.names.index(pathlib.Path(name).name))
        y = embed_whole(variables, continue_mirrored(sound, len(sound) + 480))
        frames = len(sound) // stride
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
    output = str(tmp_path / "features.npz")
    embed.run(str(tmp_path / "model"), str(recordings), output, "codes,z")
    made, vectors = np.load(output), np.asarray(own["sums"])
    np.testing.assert_array_equal(made["codes/times_seconds"], made["z/times_seconds"])
    for name in LENGTHS:
        codes, z = made[f"codes/{name}"], made[f"z/{name}"]
        assert codes.shape == (len(z), 1)
        np.testing.assert_allclose(vectors[codes[:, 0].astype(int)], z, rtol=1e-4)
    assert len(np.unique(np.concatenate([made[f"codes/{name}"] for name in LENGTHS]))) > 1


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
        if name in ("cut.mp3", "half.wav"):
            os.truncate(root / name, (root / name).stat().st_size // 2)
    (root / "noise.mp3").write_bytes(b"no sound at all")
    (root / "link").symlink_to(".")
    said, skipped = embed_to(tmp_path / "out.npz", audio_model(), root)
    reasons = {pathlib.Path(name).name: reason for name, reason in skipped}
    assert sorted(reasons) == ["hole", "link", "noise"]
    assert "NaN" in reasons["hole"]
    assert sum(line.startswith("skipped ") for line in said) == 3
    assert re.fullmatch(r"5 files, 3 skipped, [\d.e-]+ h audio in .* h audio/s", said[-1])
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
    config = image_config()
    model = image.build_model(config)
    variables = draw(model.module, np.zeros((1, 4, 4, 8, 8, 1), "f"))
    given = {"kind": "image", "shape": [4, 4, 8, 8, 1]}
    about = {"config": json.loads(config.to_json())}
    pretrained = models.Pretrained(model.module, variables, given, about)
    root, rng = tmp_path / "in", np.random.default_rng(0)
    (root / "cats").mkdir(parents=True)
    pixels, colored = (rng.integers(0, 256, size, np.uint8) for size in ((3, 28, 28), (40, 32, 3)))
    for number, picture in enumerate((*pixels, colored)):
        Image.fromarray(picture).save(root / "cats" / f"{number}.png")
    (root / "bad.png").write_bytes(b"?")
    (root / os.fsdecode(b"caf\xe9.png")).write_bytes((root / "cats" / "0.png").read_bytes())
    (root / "zero.png").symlink_to("/dev/zero")
    _, skipped = embed_to(tmp_path / "out.arrow", pretrained, root)
    assert [name for name, _ in skipped] == ["bad", "caf\\udce9", "zero"]
    rows = pa.ipc.open_file(str(tmp_path / "out.arrow")).read_all().to_pylist()
    shape = 4, 4, 16  # down and up
    made = {row["name"]: np.reshape(np.float32(row["features"]), shape) for row in rows}
    assert sorted(made) == ["cats/0", "cats/1", "cats/2", "cats/3"]
    x = preprocess(config, {"x": jax.numpy.asarray(pixels[..., None])}, jax.random.key(0), False)
    wanted = jax.jit(model.embed)(variables, x["x"])
    for number in range(3):
        np.testing.assert_allclose(made[f"cats/{number}"], wanted[1][number], rtol=1e-5, atol=1e-5)
    function = models.embed_with(pretrained)
    for x in (colored, colored / 255):
        np.testing.assert_allclose(function(x)[1], made["cats/3"], rtol=1e-5, atol=1e-5)
    for found, expected in zip(function(pixels[..., None]), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert function(np.zeros((2, 4, 4, 8, 8, 1), "f"))[0].shape[:3] == (2, 4, 4)
    for wrong in (np.zeros((2, 4, 4, 8, 9, 1), "f"), np.full((28, 28), 9.0)):
        with pytest.raises(UserError):
            function(wrong)
    with pytest.raises(UserError, match="export"):
        models.embed_with(pretrained._replace(about={}))(colored)


@pytest.mark.parametrize(("match", "arguments"), [
    ("--input and --output", (None, "in", "out.npz")),
    ("not a folder", ("run", "in", "out.npz")),
    ("quantized", ("model", "in", "out.npz", "codes")),
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
    other_patches = json.loads(image_config().to_json())
    for recorded in (3, {"data": 3}, {"data": {"size": 10**12}}, other_patches):
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


ALL = (*(f"z{number}" for number in range(1, 6)), "c1", "c2")


@pytest.mark.parametrize(
    ("rms", "directions", "rate", "size"),
    [(None, ("forward",), 44_100, 23_000), (0.05, ("forward", "backward"), 16_000, 890)],
)
def test_arrays_of_sound_equal_files(tmp_path, small_chunks, rms, directions, rate, size):
    """Layers match to the last frame, whole or in chunks, also after resampling."""
    pretrained = audio_model("same", rms, models.GRU(6, 2), directions=directions)
    x = (2**15 * (0.04 * np.random.default_rng(1).normal(size=size) + 0.1)).astype(np.int16)
    path = tmp_path / "Größe 2.wav"
    soundfile.write(path, x, rate)
    ((name, wanted, _),) = CONTRASTIVE["audio"].embed_files(pretrained, path, ALL, []).features
    assert name == "Größe 2"
    function = models.embed_with(pretrained)
    with pytest.raises(UserError, match="channels"):
        function(np.zeros((1700, 2)))
    found = function.layers(x, sample_rate_hz=rate)
    assert found.keys() == {*ALL, "z", "c"}
    for layer, array in {**wanted, "z": found["z5"], "c": found["c2"]}.items():
        np.testing.assert_allclose(found[layer], array, rtol=1e-5, atol=1e-5)
    both = function([x, x[: size // 2]], sample_rate_hz=rate)
    for layer, (whole, half) in zip("zc", both, strict=True):
        np.testing.assert_allclose(whole, found[layer], rtol=1e-5, atol=1e-5)
        assert len(half) == size // 2 * RATE // rate // 160


def test_layers_are_named_in_a_list():
    module = audio_model(context=models.GRU(6, 2)).module
    assert embed.parse_layers("all", module) == ALL
    assert embed.parse_layers("z1, z,codes,z1", module) == ("z1", "z", "codes")
    for wrong in ("z9", "z1,x", ",", ""):
        with pytest.raises(UserError, match=r"--features must .*z1, .*, z5, z, c1, c"):
            embed.parse_layers(wrong, module)


@pytest.mark.parametrize("output", ["a.npz", "a.arrow", "tree/"])
def test_several_layers_are_told_apart_in_every_form(tmp_path, output):
    rng = np.random.default_rng(0)
    made = {"z1": np.float32(rng.normal(size=(6, 2))), "c": np.float32(rng.normal(size=(3, 4)))}
    frames = {"z1": 0.005, "c": 0.01}
    with open_output(f"{tmp_path}/{output}", list(made), frames) as write:
        write("ann/a", made)
    for layer, array in made.items():
        if output == "a.npz":
            whole = np.load(tmp_path / output)
            found, times = (whole[f"{layer}/{name}"] for name in ("ann/a", "times_seconds"))
            assert len(whole) == 4
        elif output == "a.arrow":
            (row,) = pa.ipc.open_file(str(tmp_path / output)).read_all().to_pylist()
            found, times = row[layer], row[f"{layer}_times_seconds"]
            assert row["name"] == "ann/a"
        else:
            found = np.load(tmp_path / "tree" / layer / "ann" / "a.npy")
            told = json.loads((tmp_path / "tree" / layer / "times.json").read_text())
            times = told["first_seconds"] + told["frame_seconds"] * np.arange(len(array))
        np.testing.assert_array_equal(np.float32(found), array)
        np.testing.assert_allclose(times, (np.arange(len(array)) + 0.5) * frames[layer])


def test_pooled_features_are_means_over_frames(recordings, tmp_path):
    models.save(tmp_path / "model", audio_model("causal"))
    run = functools.partial(embed.run, str(tmp_path / "model"), str(recordings))
    run(str(tmp_path / "frames.npz"), "z1,c")
    run(str(tmp_path / "means.npz"), "z1,c", pool="mean")
    frames, means = (np.load(tmp_path / f"{name}.npz") for name in ("frames", "means"))
    assert set(means) == {name for name in frames if "times" not in name}
    for name, vector in means.items():
        np.testing.assert_allclose(vector, frames[name].mean(axis=0), rtol=1e-5, atol=1e-6)
