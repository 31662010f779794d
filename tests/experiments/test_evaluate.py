"""Weights that were not trained here, through the evaluators of a run."""

import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

from configs.keys import make_config
from cpc import models
from cpc.data import at_loudness, make_items, make_synthetic, phone_chain, read_all, write_items
from cpc.evaluate.embeddings import continue_mirrored
from cpc.results import read_scores
from cpc.types import UserError
from experiments import evaluate
from experiments.command.config import Config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio import tasks
from experiments.kinds.registry import CONTRASTIVE
from tests.fake_torch import released_weights

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
QUICK = ("--config.probe.hidden_width=0", "--config.probe.num_epochs=1",
         "--config.data.test_fraction=0.4", "--config.probe.features=('c',)")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two speakers of three recordings each, loud and quiet, their labels and their items."""
    root = tmp_path_factory.mktemp("recordings")
    made = make_synthetic(
        num_speakers=2, utterances_per_speaker=3, seconds=3.0, chain=phone_chain(3), seed=0
    )
    sounds, lines = made.recordings, []
    for i, (name, speaker) in enumerate(zip(sounds.names, sounds.speakers, strict=True)):
        (root / "wav" / speaker).mkdir(parents=True, exist_ok=True)
        samples = sounds.read(i, 0, int(sounds.lengths[i])) // (1 + 3 * (i % 2))
        soundfile.write(root / "wav" / speaker / f"{name}.wav", samples, 16_000)
        lines.append(" ".join([name, *(made.label_names[k] for k in made.labels[name])]))
    (root / "labels.txt").write_text("\n".join(lines) + "\n")
    speakers = dict(zip(sounds.names, sounds.speakers, strict=True))
    write_items(root / "toy.item", make_items(made.labels, made.label_names, speakers))
    return root


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CPC_DATA", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def released(tmp_path):
    path = tmp_path / "60k_epoch4.npz"
    np.savez(path, **released_weights())
    return path


def values(scores):
    return [score._replace(outcomes=None) for score in scores]


def run(checkpoint, folder, workdir, *settings, **options):
    options = {"tasks": ["abx"], **options}
    evaluate.run(
        str(checkpoint), str(folder / "wav"), str(workdir), settings=(*QUICK, *settings), **options
    )
    return read_scores(workdir)


def test_a_released_checkpoint_goes_through_every_evaluator(folder, released, tmp_path, capsys):
    labels, items, workdir = folder / "labels.txt", folder / "toy.item", tmp_path / "run"
    options = {"phones": str(labels), "items": str(items), "tasks": []}
    ctc = ("--config.probe.ctc_steps=2", "--config.probe.ctc_minutes=(0.0,)",
           "--config.probe.ctc_beam=1")  # fmt: skip
    scores = run(released, folder, workdir, *ctc, **options)
    assert {score.features for score in scores} == {"c"}
    assert {(score.task, score.data) for score in scores} == {
        ("phones", "labels"), ("CTC", "labels"), ("speakers", "wav"), ("ABX", "labels"),
        ("ABX", "toy.item"),
    }  # fmt: skip
    assert {score.method for score in scores if score.task == "ABX"} == {
        "within speaker", "across speakers"
    }  # fmt: skip
    page = (workdir / "report.html").read_text()
    assert "c is of 60k_epoch4.npz (format facebookresearch/CPC_audio" in page
    assert "nothing was trained here" in page
    assert "No evaluation" not in page
    before = {path: path.stat().st_mtime_ns for path in (workdir / "probes").iterdir()}
    capsys.readouterr()
    assert values(run(released, folder, workdir, *ctc, **options)) == values(scores)
    assert "phones, ctc, speakers, abx are answered already" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (workdir / "probes").iterdir()}


def test_what_is_missing_is_added_for_one_checkpoint(folder, released, tmp_path, monkeypatch):
    """Nothing is asked twice, and never of other weights in the same directory."""
    asked = []
    monkeypatch.setattr(
        evaluate, "make_probe", lambda _, config, *__: lambda *_: asked.append(config.probe.tasks)
    )

    def ask(*tasks, weights=released, workdir=tmp_path / "run", settings=()):
        run(weights, folder, workdir, *settings, tasks=tasks, items=str(folder / "toy.item"))

    ask("abx")
    ask("abx", "speakers")
    ask("abx")
    assert asked == [("abx",), ("speakers",)]
    ask("abx", settings=("--config.probe.lose_last_frame=True",))
    assert asked[2:] == [("abx",)]
    other = models.load_cpc_audio(released)
    changed = jax.tree.map(lambda x: x + jnp.float32(1e-3), other.variables)
    models.save(tmp_path / "other", other._replace(variables=changed))
    with pytest.raises(UserError, match=r"has the scores of 60k_epoch4.npz, layer c, and not of"):
        ask("abx", weights=tmp_path / "other")
    models.save(tmp_path / "same", other)
    ask("abx", weights=tmp_path / "same")
    (tmp_path / "trained" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="is the directory of a run: choose another"):
        ask("abx", workdir=tmp_path / "trained")


def embedded(monkeypatch, folder, checkpoint, workdir, **options):
    """The features that the evaluators get, by name and utterance."""
    found = {}

    def take(name, items, feature, *rest):
        found[feature.name] = feature.values.by_utterance
        return []

    monkeypatch.setattr(tasks, "abx_scores", take)
    run(checkpoint, folder, workdir, items=str(folder / "toy.item"), **options)
    return found


def as_they_are(folder):
    for path in sorted((folder / "wav").rglob("*.wav")):
        yield path.stem, soundfile.read(path, dtype="int16")[0].astype(np.float32) / 32768


def contexts_alone(pretrained, x):
    """Contexts of one recording, continued by its mirror image, which the last frames see."""
    embed = jax.jit(models.make_model(pretrained.module).embed)
    x = continue_mirrored(x, len(x) + 320)[None]
    return embed(pretrained.variables, x)[1][0][: x.shape[1] // 160 - 2]


def test_networks_get_recordings_at_their_own_loudness(folder, released, tmp_path, monkeypatch):
    """As if the same weights had been trained at a loudness; the next test has none."""
    pretrained = models.load_cpc_audio(released)
    loud = pretrained._replace(input={**pretrained.input, "rms": 0.2})
    models.save(tmp_path / "loud", loud)
    found = embedded(monkeypatch, folder, tmp_path / "loud", tmp_path / "run")
    for name, x in as_they_are(folder):
        scaled = x * (0.2 / np.sqrt(np.mean(x.astype(np.float64) ** 2)))
        expected = contexts_alone(pretrained, scaled.astype(np.float32))
        np.testing.assert_allclose(found["c"][name], expected, rtol=1e-3, atol=1e-4)


def test_a_layer_is_judged_as_if_the_network_ended_there(folder, released, tmp_path, monkeypatch):
    found = embedded(monkeypatch, folder, released, tmp_path / "run", layer="c1")
    pretrained = models.load_cpc_audio(released)
    module, variables = models.end_at(pretrained.module, pretrained.variables, "c1")
    ended = pretrained._replace(module=module, variables=variables)
    for name, x in as_they_are(folder):
        np.testing.assert_allclose(found["c"][name], contexts_alone(ended, x), rtol=1e-4, atol=1e-5)
        assert np.abs(found["c"][name] - contexts_alone(pretrained, x)).max() > 0.01


def test_an_exported_run_keeps_its_config(released, tmp_path):
    config: Config = evaluate.config_of(models.load_cpc_audio(released))
    network = config.model
    assert (network.width, network.context, network.context_width) == (8, "lstm", 8)
    assert (network.norm, network.padding, network.context_layers) == ("channel", "same", 2)
    assert config.data.window_samples == 20_480
    module = audio.build_model(config).module
    assert module == models.load_cpc_audio(released).module
    recorded = json.loads(config.to_json())
    recorded["probe"]["hours"] = 7.0
    known = models.load_cpc_audio(released)._replace(about={"config": recorded})
    assert evaluate.config_of(known).probe.hours == 7.0


def test_loudness_is_that_of_the_model():
    made = make_synthetic(
        num_speakers=1, utterances_per_speaker=2, seconds=1.0, chain=phone_chain(3), seed=0
    ).recordings
    with pytest.raises(ValueError, match="not packed"):
        at_loudness(dataclasses.replace(made, rms=None), None)
    packed = dataclasses.replace(made, rms=np.array([0.3, 0.3], np.float32))
    raw = made.read(0, 0, int(made.lengths[0])).astype(np.float32) / 32768
    np.testing.assert_allclose(read_all(at_loudness(packed, None), 0), raw, rtol=1e-6)
    np.testing.assert_allclose(read_all(at_loudness(packed, 0.6), 0), 2 * raw, rtol=1e-6)


def test_one_speaker_has_neither_speakers_nor_abx_across(folder, released, tmp_path, capsys):
    alone = tmp_path / "alone"
    shutil.copytree(folder / "wav" / "speaker-000", alone / "wav")
    with pytest.raises(UserError, match=r"are of one speaker .* no labels: give --phones or --it"):
        run(released, alone, tmp_path / "run", tasks=[])
    with pytest.raises(UserError, match="nothing to tell apart"):
        run(released, alone, tmp_path / "run", tasks=["speakers"])
    with pytest.raises(UserError, match=r"3 of the 6 recordings that toy.item names are not among"):
        run(released, alone, tmp_path / "run", items=str(folder / "toy.item"))
    heading, *lines = (folder / "toy.item").read_text().splitlines()
    own = [line for line in lines if line.endswith("speaker-000")]
    (tmp_path / "own.item").write_text("\n".join([heading, *own]) + "\n")
    scores = run(released, alone, tmp_path / "run", items=str(tmp_path / "own.item"))
    assert {score.method for score in scores} == {"within speaker"}
    assert "own.item has no ABX across speakers" in capsys.readouterr().out


def test_mistakes_are_a_sentence_each(folder, released, tmp_path):
    workdir = tmp_path / "run"
    with pytest.raises(UserError, match="give --checkpoint of weights, --data of a folder"):
        evaluate.run(None, str(folder), str(workdir))
    with pytest.raises(UserError, match="--tasks is 'words': choose one of phones, speakers, ctc"):
        run(released, folder, workdir, tasks=["words"])
    with pytest.raises(UserError, match=r"no layer 'c9': choose one of z1.*c1, c2, c"):
        run(released, folder, workdir, layer="c9")
    with pytest.raises(UserError, match="--layer is 'z1': choose c, or a layer of the context"):
        run(released, folder, workdir, layer="z1")
    with pytest.raises(UserError, match="there is no file"):
        run(tmp_path / "none.pt", folder, workdir)
    with pytest.raises(UserError, match=r"labels.txt is not a file of weights"):
        run(folder / "labels.txt", folder, workdir)
    np.savez(tmp_path / "a.npz", w=np.zeros(2, "f4"))
    with pytest.raises(UserError, match=r"has no entry gEncoder"):
        run(tmp_path / "a.npz", folder, workdir)
    (tmp_path / "silent" / "wav").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no audio|no recordings"):
        run(released, tmp_path / "silent", workdir)
    with pytest.raises(UserError, match="no phone labels for a probe of phones"):
        run(released, folder, workdir, tasks=["phones"])
    (tmp_path / "other.txt").write_text("nobody a b c\n")
    for task in ("phones", "abx"):
        with pytest.raises(UserError, match=r"utterance has labels in other"):
            run(released, folder, tmp_path / task, tasks=[task], phones=str(tmp_path / "other.txt"))
    image = CONTRASTIVE["image"]
    given = {**image.describe_input(make_config(image.KEYS)), "shape": [20480]}
    models.save(tmp_path / "image", models.load_cpc_audio(released)._replace(input=given))
    with pytest.raises(UserError, match="is of image, and evaluated is sound here"):
        run(tmp_path / "image", folder, workdir)
