"""The audio experiment: whole runs and data loading."""

import json

import numpy as np
import pytest
import soundfile

from configs import audio, audio_voices
from cpc.results import difference, read_scores
from cpc.types import UserError
from experiments.kinds.audio import data as audio_data
from experiments.kinds.audio import probes as audio_probes
from tests import commands
from tests.commands import ONE_DEVICE_POLISHED, flags_of
from tests.fake_run import untimed_records

SYNTHETIC = ("experiments.train", "--config", "configs/audio_synthetic.py", "--workdir")
#: A network of width 8 on windows of 10 latents.
TINY = {
    "data.window_samples": 1600, "data.batch_size": 8, "model.width": 8, "model.context_width": 8,
    "model.num_offsets": 3, "evaluate.num_windows": 8, "optim.warmup_steps": 1, "num_steps": 4,
    "log_every": 1, "eval_every": 2, "save_every": 2, "probe.hidden_width": 0,
    "probe.num_epochs": 1, "probe.hours": 0.002,
}  # fmt: skip


@pytest.mark.whole
def test_whole_run_on_synthetic_speech(tmp_path):
    probe = {"probe.features": "('c','random c')", "probe.minutes_per_speaker": 0.2}
    workdir = tmp_path / "run"
    done = commands.run(*SYNTHETIC, workdir, *flags_of(TINY | probe))
    for name in (
        "config.json", "environment.json", "metrics.jsonl", "report.html", "truth.json",
        "scores.json", "scores.npz", "probes/speaker_map.npz", "skipped.txt",
        "exported/model.safetensors", "exported/README.md",
    ):  # fmt: skip
        assert (workdir / name).exists(), name
    assert list((workdir / "tensorboard").iterdir())
    assert list((workdir / "figures").glob("*.png"))
    assert done.stdout.splitlines()[-1] == f"report: {workdir / 'report.html'}"
    assert "s audio/s" in done.stdout
    assert "left" in done.stdout
    strict = [record for record in untimed_records(workdir) if record.get("series") == "strict"]
    assert [record["step"] for record in strict] == [2, 4]
    assert all(record["is_bound"] for record in strict)
    assert json.loads((workdir / "truth.json").read_text())["offsets"] == [3]
    scores = read_scores(workdir)
    assert {(s.task, s.features, s.step) for s in scores} == {
        (task, features, 4) for task in ("phones", "speakers") for features in ("c", "random c")
    }


@pytest.mark.nightly
def test_full_size_bound_approaches_the_truth_from_below(tmp_path):
    commands.run(*SYNTHETIC, tmp_path, how=ONE_DEVICE_POLISHED)
    truth = json.loads((tmp_path / "truth.json").read_text())
    strict = [r for r in untimed_records(tmp_path) if r.get("rule") == "one_per_sequence"][-1]
    assert strict["is_bound"]
    for k, information in zip(truth["offsets"], truth["mutual_information"], strict=True):
        assert strict["bound_low"][k - 1] <= information
        assert strict["bound"][k - 1] > 0.75 * information, "most of it is found"
    linear = [score for score in read_scores(tmp_path) if score.method == "linear"]
    found = {score.features: score for score in linear if score.task == "phones"}
    assert found["c"].low > found["c"].chance
    assert found["c"].low > found["random c"].high
    lead = difference(found["c"], found["random c"])
    assert lead.paired == "items"
    assert lead.low > 0


@pytest.mark.whole
@pytest.mark.network
def test_short_run_on_voices(tmp_path):
    settings = TINY | {
        "data.window_samples": 2560, "model.width": 16, "model.context_width": 16,
        "model.num_offsets": 4, "evaluate.num_windows": 16, "num_steps": 60, "log_every": 20,
        "eval_every": 60, "save_every": 60, "optim.warmup_steps": 5, "optim.learning_rate": 1e-2,
        "probe.hours": 0.01, "probe.tasks": "('phones',)", "probe.features": "('c','mfcc')",
    }  # fmt: skip
    flags = ("--config", "configs/audio_voices.py", *flags_of(settings))
    done = commands.run("experiments.train", *flags, "--workdir", tmp_path / "run")
    assert "9 speakers" in done.stdout
    phones = [score for score in read_scores(tmp_path / "run") if score.task == "phones"]
    assert {score.data for score in phones} == {"festvox_ru", "asterisk_en"}
    mfcc = next(s for s in phones if s.features == "mfcc" and s.data == "festvox_ru")
    assert mfcc.value == pytest.approx(0.481, abs=0.02)
    losses = [r["loss"] for r in untimed_records(tmp_path / "run") if r["split"] == "train"]
    assert losses[-1] < 4 * np.log(8 * 16)


def test_split_lists_replace_the_voices_split(tmp_path, monkeypatch):
    root, rng = tmp_path / "voices", np.random.default_rng(0)
    (root / "1").mkdir(parents=True)
    for name in "abcd":
        soundfile.write(root / "1" / f"{name}.flac", rng.normal(0, 0.05, 16_000), 16_000)
    for name in ("festvox_ru", "asterisk_en"):
        (root / f"phones_{name}.txt").write_text("a 0 1\n")
    lists = {"train_split": "a b c", "test_split": "d", "own_train": "a", "own_test": "b c"}
    for name, words in lists.items():
        (root / f"{name}.txt").write_text("\n".join(words.split()) + "\n")
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(audio_data, "prepare_voices", lambda log: root)
    config = audio_voices.get_config()
    given = audio_data.load_data(config, str)
    assert sorted(given.train.names) == ["a", "b", "c"]
    config.data.train_list = str(root / "own_train.txt")
    config.data.test_list = str(root / "own_test.txt")
    own = audio_data.load_data(config, str)
    assert (sorted(own.train.names), sorted(own.test.names)) == (["a"], ["b", "c"])


def test_labels_of_damaged_recordings_are_omitted(tmp_path, monkeypatch):
    root, rng, said = tmp_path / "sounds" / "ann", np.random.default_rng(0), []
    root.mkdir(parents=True)
    names = [f"a{i}" for i in range(12)]
    for name in names:
        soundfile.write(root / f"{name}.wav", rng.normal(0, 0.05, 32_000), 16_000)
    whole = (root / "a3.wav").read_bytes()
    (root / "a3.wav").write_bytes(whole[:40_000])
    (root / "a4.wav").write_bytes(b"no sound")
    labels, items = tmp_path / "phones.txt", tmp_path / "x.item"
    labels.write_text("".join(f"{name} {'0 1 0 2 ' * 50}\n" for name in names))
    lines = [f"{name} {t} {t + 1} {'ab'[t]} b c ann" for name in names for t in range(2)]
    items.write_text("\n".join(["#file", *lines]) + "\n")
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))
    config = audio.get_config()
    config.data.update(source="folder", path=str(root.parent), max_skipped_fraction=0.2)
    config.data.update(phones=str(labels), item_file=str(items))
    config.probe.tasks = ("phones", "ctc", "boundaries", "abx")
    read = audio_data.load_data(config, said.append)
    assert sorted(read.phones["phones"].labels) == sorted({*names} - {"a3", "a4"})
    assert [item.onset for item in read.items["x.item"] if item.file in ("a3", "a4")] == [0]
    assert "phones: dropped the labels of 2 damaged recordings" in said
    assert "x.item: dropped 3 items of damaged recordings" in said
    audio_probes.probe_tasks(config, read)
    (root / "a3.wav").write_bytes(whole)
    assert not [line for line in said if "have no recording" in line]
    labels.write_text(labels.read_text().replace("a5 ", "a5.wav ").replace("a6 ", "ann/a6 "))
    audio_data.load_data(config, said.append)
    assert (
        "phones: 2 of 11 labelled utterances have no recording (a5.wav, ann/a6); 9 of "
        "11 recordings have labels; "
    ) in "\n".join(said)
    config.data.item_file = str(items.rename(tmp_path / "phones.item"))
    with pytest.raises(UserError, match=r"would both write probes/phones\.item"):
        audio_data.load_data(config, said.append)
    config.data.item_file = str((tmp_path / "phones.item").rename(items))
    labels.write_text(labels.read_text().replace("a3 ", "a3 " + "0 " * 50))
    read = audio_data.load_data(config, said.append)
    with pytest.raises(UserError, match="a3 has 250 labels but 200 frames"):  # not its labels
        audio_probes.probe_tasks(config, read)
