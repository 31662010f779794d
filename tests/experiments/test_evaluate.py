"""Evaluation of weights trained elsewhere."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

from configs.keys import make_config
from cpc import models
from cpc.data import at_loudness, make_items, write_items
from cpc.evaluate.embeddings import continue_mirrored
from cpc.results import read_scores
from cpc.types import UserError
from experiments import evaluate
from experiments.command.config import Config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio import tasks
from experiments.kinds.registry import CONTRASTIVE
from tests import plans
from tests.fake_torch import released_weights

QUICK = ("--config.probe.hidden_width=0", "--config.probe.num_epochs=1",
         "--config.data.test_fraction=0.4", "--config.probe.features=('c',)")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write three loud and three quiet recordings of two speakers with labels and items."""
    root = tmp_path_factory.mktemp("recordings")
    made = plans.speech(2, 3, 2.0)
    sounds, (labels, label_names), lines = made.train, made.phones["synthetic"], []
    speakers = dict(zip(sounds.names, sounds.speakers, strict=True))
    for i, (name, speaker) in enumerate(speakers.items()):
        (root / "wav" / speaker).mkdir(parents=True, exist_ok=True)
        samples = sounds.read(i, 0, int(sounds.lengths[i])) // (1 + 3 * (i % 2))
        soundfile.write(root / "wav" / speaker / f"{name}.wav", samples, 16_000)
        lines.append(" ".join([name, *(label_names[k] for k in labels[name])]))
    (root / "labels.txt").write_text("\n".join(lines) + "\n")
    write_items(root / "toy.item", make_items(labels, label_names, speakers))
    return root


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CPC_DATA", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def released(tmp_path):
    path = tmp_path / "60k_epoch4.npz"
    np.savez(path, **released_weights())
    return path


def run(checkpoint, folder, workdir, *settings, **options):
    options = {"tasks": ["abx"], **options}
    evaluate.run(
        str(checkpoint), str(folder / "wav"), str(workdir), settings=(*QUICK, *settings), **options
    )
    return read_scores(workdir)


def test_released_checkpoint_is_evaluated_by_all_tasks(folder, released, tmp_path, capsys):
    labels, items, workdir = folder / "labels.txt", folder / "toy.item", tmp_path / "run"
    options = {"phones": str(labels), "items": str(items), "tasks": []}
    table = tmp_path / "species.csv"
    waves = sorted((folder / "wav").rglob("*.wav"))
    names = (f"{path.parent.name}/{path.name}" for path in waves)
    table.write_text("".join(f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names)))
    ctc = ("--config.probe.ctc_steps=2", "--config.probe.ctc_minutes=(0.0,)",
           "--config.probe.ctc_beam=1", f"--config.data.file_labels={table}")  # fmt: skip
    scores = run(released, folder, workdir, *ctc, **options)
    assert {score.features for score in scores} == {"c"}
    assert {(score.task, score.data) for score in scores} == {
        ("phones", "labels"), ("CTC", "labels"), ("speakers", "wav"), ("ABX", "labels"),
        ("ABX", "toy.item"), ("files", "species.csv"),
    }  # fmt: skip
    assert {score.method for score in scores if score.task == "ABX"} == {
        "within speaker", "across speakers"
    }  # fmt: skip
    page = (workdir / "report.html").read_text()
    assert "60k_epoch4.npz (format facebookresearch/CPC_audio" in page
    before = {path: path.stat().st_mtime_ns for path in workdir.glob("probes/*")}
    capsys.readouterr()
    run(released, folder, workdir, *ctc, **options)
    assert "already evaluated: phones, ctc, speakers, files, abx" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in workdir.glob("probes/*")}


def test_only_missing_scores_of_a_checkpoint_are_added(folder, released, tmp_path, monkeypatch):
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
    with pytest.raises(UserError, match=r"other weights \(60k_epoch4.npz, layer c\)"):
        ask("abx", weights=tmp_path / "other")
    models.save(tmp_path / "same", other)
    ask("abx", weights=tmp_path / "same")
    (tmp_path / "trained" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="trained is a run directory"):
        ask("abx", workdir=tmp_path / "trained")


@pytest.mark.parametrize(("rms", "layer"), [(0.2, "c1"), (None, "c")])
def test_layer_is_evaluated_as_the_last_layer(folder, released, tmp_path, monkeypatch, rms, layer):
    pretrained, found = models.load_cpc_audio(released), {}
    models.save(tmp_path / "it", pretrained._replace(input={**pretrained.input, "rms": rms}))

    def take(name, items, feature, *rest):
        found.update(feature.values.by_utterance)
        return []

    monkeypatch.setattr(tasks, "abx_scores", take)
    items = str(folder / "toy.item")
    run(tmp_path / "it", folder, tmp_path / "run", items=items, layer=layer)
    module, variables = models.end_at(pretrained.module, pretrained.variables, layer)
    embed = jax.jit(models.make_model(module).embed)
    for path in (folder / "wav").rglob("*.wav"):
        x = soundfile.read(path)[0]
        x = np.float32(x * (rms / np.sqrt(np.mean(x**2)) if rms else 1))
        # Recordings are continued by their mirror image.
        _, c = embed(variables, continue_mirrored(x, len(x) + 320)[None])
        np.testing.assert_allclose(found[path.stem], c[0, :-2], rtol=1e-3, atol=1e-4)


def test_exported_config_is_used(released, tmp_path):
    config: Config = evaluate.config_of(models.load_cpc_audio(released))
    assert config.data.window_samples == 20_480
    assert audio.build_model(config).module == models.load_cpc_audio(released).module
    recorded = json.loads(config.to_json())
    recorded["probe"]["hours"] = 7.0
    known = models.load_cpc_audio(released)._replace(about={"config": recorded})
    assert evaluate.config_of(known).probe.hours == 7.0


def test_scaling_to_a_loudness_needs_that_of_the_recordings():
    made = dataclasses.replace(plans.speech(1, 2, 1.0).train, rms=None)
    with pytest.raises(ValueError, match="packed"):
        at_loudness(made, None)


def test_invalid_arguments_are_rejected(folder, released, tmp_path):
    shutil.copytree(folder / "wav" / "speaker-000", tmp_path / "alone" / "wav")
    (tmp_path / "silent" / "wav").mkdir(parents=True)
    (tmp_path / "other.txt").write_text("nobody a b c\n")
    other, items = str(tmp_path / "other.txt"), str(folder / "toy.item")
    image = CONTRASTIVE["image"]
    given = {**image.describe_input(make_config(image.KEYS)), "shape": [20480]}
    models.save(tmp_path / "image", models.load_cpc_audio(released)._replace(input=given))
    for words, weights, place, options in (
        ("--tasks must .*speakers, files, ctc.*'words'", released, folder, {"tasks": ["words"]}),
        (r"'c9'.*choose one of z1.*c1, c2, c", released, folder, {"layer": "c9"}),
        ("--layer must .*'z1'", released, folder, {"layer": "z1"}),
        ("no recordings", released, tmp_path / "silent", {}),
        ("a probe of phones needs phone labels", released, folder, {"tasks": ["phones"]}),
        ("labels in other", released, folder, {"phones": other}),
        ("must be an audio model .*image", tmp_path / "image", folder, {}),
        ("one speaker .* --phones or --items", released, tmp_path / "alone", {"tasks": []}),
        ("one speaker .*remove speakers", released, tmp_path / "alone", {"tasks": ["speakers"]}),
        ("3 of the 6 recordings in toy.item", released, tmp_path / "alone", {"items": items}),
    ):
        with pytest.raises(UserError, match=words):
            run(weights, place, tmp_path / "run", **options)
    with pytest.raises(UserError, match=r"--checkpoint .* --data"):
        evaluate.run(None, str(folder), str(tmp_path / "run"))
