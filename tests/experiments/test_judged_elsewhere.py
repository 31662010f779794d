"""Evaluation on other data: names must differ, and the scores of the run are kept."""

from typing import Any

import numpy as np
import pytest

from configs import audio_voices, image_fashion_mnist, series_files, text_sentences
from cpc.results import read_scores
from cpc.types import UserError
from experiments.command.config import evaluation_config, with_settings
from experiments.kinds.registry import CONTRASTIVE
from experiments.kinds.text import probes as text_probes
from experiments.kinds.text.data import load_data as load_text
from experiments.training.contrastive import check_data_identity
from experiments.training.probes import FeatureSet, ProbeContext
from tests.commands import run
from tests.experiments.test_export import write_run
from tests.experiments.test_text import tiny

SOURCES = {
    "audio": (audio_voices, "folder", "voices"),
    "image": (image_fashion_mnist, "folder", "fashion_mnist"),
    "series": (series_files, "files", "ar1"), "text": (text_sentences, "files", "grammar"),
}  # fmt: skip


def write_series(folder, number=4):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(len(folder.as_posix()))
    for i in range(number):
        x = rng.normal(size=(64, 1)).astype(np.float32)
        np.savez(folder / f"{i}.npz", x=x, sign=np.where(x[:, 0] > 0, "above", "below"))
    return folder


def folder_config(folder, **settings):
    small = {"data.path": str(folder), "data.step_label": "sign", "data.window_steps": 32,
             "probe.tasks": ("steps",), "probe.features": ("raw",)}  # fmt: skip
    return with_settings(series_files.get_config(), small | settings)


def is_own_data(kind, own, *flags):
    given = [f"--config.data.{flag}" for flag in flags]
    return check_data_identity(
        CONTRASTIVE[kind], own, evaluation_config(own, CONTRASTIVE[kind].KEYS, given)
    )


@pytest.mark.parametrize("kind", SOURCES)
def test_other_data_with_the_same_name_are_rejected(kind, tmp_path, monkeypatch):
    get_config, source, _ = SOURCES[kind]
    for name in ("a/wav", "b/wav", "b/other"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    path = {"data.source": source, "data.path": "a/wav"}
    own = with_settings(get_config.get_config(), path)
    for given in ("path=a/wav", f"path={tmp_path}/b/../a/wav", "batch_size=3"):
        assert is_own_data(kind, own, given) == (given == "path=a/wav")
    assert not is_own_data(kind, own, "path=b/other")
    with pytest.raises(UserError, match=r"b/wav would .*/a/wav, also named wav"):
        is_own_data(kind, own, "path=b/wav")
    (tmp_path / "a/wav").rename(tmp_path / "moved")
    assert is_own_data(kind, own, "path=b/wav"), "the folder was moved"


@pytest.mark.parametrize("kind", SOURCES)
def test_folder_named_like_a_source_is_rejected(kind, tmp_path):
    get_config, source, name = SOURCES[kind]
    own = with_settings(get_config.get_config(), {"data.source": name})
    assert is_own_data(kind, own)
    for folder in ("other", name):
        (tmp_path / folder).mkdir()
    assert not is_own_data(kind, own, f"source={source}", f"path={tmp_path}/other")
    with pytest.raises(UserError, match=f"also named {name}"):
        is_own_data(kind, own, f"source={source}", f"path={tmp_path / name}")


def test_tfds_data_are_identified_by_name(tmp_path):
    settings = {"data.source": "tfds", "data.name": "cifar10", "data.path": str(tmp_path)}
    own = with_settings(image_fashion_mnist.get_config(), settings)
    assert not is_own_data("image", own, f"path={tmp_path.parent}", "name=cifar10")


def test_other_labels_with_the_same_name_are_rejected(tmp_path):
    for name in ("a/wav", "b/other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a/phones.txt", "b/phones.txt", "b/others.txt", "a/dev.item", "b/dev.item"):
        (tmp_path / name).touch()
    given = {"path": "a/wav", "phones": "a/phones.txt", "item_file": "a/dev.item"}
    settings = {f"data.{name}": str(tmp_path / value) for name, value in given.items()}
    own = with_settings(audio_voices.get_config(), {"data.source": "folder", **settings})
    other = f"path={tmp_path}/b/other"
    for flag, name in (("phones", "phones.txt"), ("item_file", "dev.item")):
        for folder in "ab":  # also the same file for other recordings
            with pytest.raises(UserError, match=f"{folder}/{name} of .*b/other would replace"):
                is_own_data("audio", own, other, f"{flag}={tmp_path}/{folder}/{name}")
    assert not is_own_data("audio", own, other, f"phones={tmp_path}/b/others.txt")
    assert not is_own_data("audio", own, f"phones={tmp_path}/b/others.txt")
    (tmp_path / "a/phones.txt").unlink()
    assert is_own_data("audio", own, f"phones={tmp_path}/b/phones.txt"), "moved"


def test_next_sentence_scores_have_the_name_of_the_text(tmp_path):
    config = tiny(**{"probe.features": ("bag",)})
    grammar = load_text(config, str)
    for text, name in ((grammar, "grammar"), (grammar._replace(name="mine"), "mine")):
        (task,) = text_probes.probe_tasks(config, text)
        context: Any = ProbeContext(config, text, *[None] * 5)
        scores = task.answer(context, FeatureSet(*config.probe.features, None))
        assert {score.data for score in scores} == {name}


def test_probe_command_keeps_the_scores_of_the_run(tmp_path):
    own, theirs, same = (write_series(tmp_path / name) for name in ("a/in", "b/other", "b/in"))
    workdir = tmp_path / "run"
    network = {"width": 8, "context_width": 8, "kernels": (1,), "strides": (1,), "num_offsets": 2}
    config = folder_config(own, **{f"model.{name}": value for name, value in network.items()})
    module = CONTRASTIVE["series"].build_model(config).module
    write_run(workdir, config, module, np.zeros((1, 32, 1), np.float32))
    run("experiments.probe", "--workdir", workdir)
    (first,) = read_scores(workdir)
    run("experiments.probe", "--workdir", workdir, f"--data.path={theirs}")
    both = read_scores(workdir)
    assert [(both[0].data, both[0].value), both[1].data] == [("in", first.value), "other"]
    assert "other" in (workdir / "report.html").read_text()
    own.rename(tmp_path / "gone")
    (same / "0.npz").unlink()
    moved = run("experiments.probe", "--workdir", workdir, f"--data.path={same}", status=2)
    assert "the data changed since" in moved.stderr
