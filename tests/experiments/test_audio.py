"""The audio experiment end to end, as its users run it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import soundfile

from configs import audio, audio_voices
from cpc.data import make_synthetic, phone_chain, read_all
from cpc.results import difference, read_scores
from cpc.results.score import read_records
from cpc.types import UserError
from experiments.kinds.audio import data as audio_data
from experiments.kinds.audio import probes as audio_probes
from experiments.kinds.audio.probes import make_embed
from tests import commands
from tests.commands import ONE_DEVICE, ONE_DEVICE_POLISHED, ROOT

pytestmark = pytest.mark.slow
SMALL = (
    "--config.data.window_samples=2560",
    "--config.model.width=16",
    "--config.model.context_width=16",
    "--config.model.num_offsets=4",
    "--config.evaluate.num_windows=16",
    "--config.probe.hidden_width=0",
)


def command(*flags, module="train"):
    return [sys.executable, "-m", f"experiments.{module}", *flags]


def run(*flags, module="train", **options):
    return commands.run(f"experiments.{module}", *flags, **options)


def records(workdir, *without):
    return [
        {name: value for name, value in record.items() if name not in without}
        for record in read_records(workdir, [])
    ]


#: What two runs of the same config cannot share.
CLOCK = ("steps_per_second", "seconds")


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """The synthetic config, whole."""
    workdir = tmp_path_factory.mktemp("runs") / "synthetic"
    done = run(
        "--config", "configs/audio_synthetic.py", "--workdir", workdir, how=ONE_DEVICE_POLISHED
    )
    return workdir, done


def test_the_run_directory_is_complete(synthetic):
    workdir, done = synthetic
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


def test_the_strict_bound_stays_below_the_truth(synthetic):
    workdir, _ = synthetic
    truth = json.loads((workdir / "truth.json").read_text())
    strict = [r for r in records(workdir) if r.get("rule") == "one_per_sequence"][-1]
    assert strict["is_bound"]
    for k, information in zip(truth["offsets"], truth["mutual_information"], strict=True):
        assert strict["bound_low"][k - 1] <= information
        assert strict["bound"][k - 1] > 0.75 * information, "most of it is found"


def test_the_probe_beats_chance_and_random(synthetic):
    workdir, _ = synthetic
    linear = [score for score in read_scores(workdir) if score.method == "linear"]
    found = {score.features: score for score in linear if score.task == "phones"}
    assert found["c"].low > found["c"].chance
    assert found["c"].low > found["random c"].high
    lead = difference(found["c"], found["random c"])
    assert lead.paired == "items"
    assert lead.low > 0


def test_the_same_command_again_changes_nothing(synthetic):
    workdir, _ = synthetic
    before = (workdir / "metrics.jsonl").read_bytes()
    done = run("--config", "configs/audio_synthetic.py", "--workdir", workdir)
    assert "resuming from step 300" in done.stdout
    assert (workdir / "metrics.jsonl").read_bytes() == before


def test_another_config_in_the_same_directory_is_refused(synthetic):
    workdir, _ = synthetic
    done = run(
        "--config", "configs/audio_synthetic.py", "--workdir", workdir,
        "--config.optim.learning_rate=0.5", status=2,
    )  # fmt: skip
    assert "optim.learning_rate is 0.004 there and 0.5 here" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_probe_runs_alone_on_any_checkpoint(synthetic):
    workdir, _ = synthetic
    done = run("--workdir", workdir, "--task", "phones", "--step", "200", module="probe")
    assert "probe of phones at step 200" in done.stdout
    steps = {score.step for score in read_scores(workdir) if score.task == "phones"}
    assert steps == {200, 300}, "the last step's scores stay"
    absent = run("--workdir", workdir, "--task", "phones", "--step", "7", module="probe", status=2)
    assert "step 7" in absent.stderr


STOPPED = (
    "--config", "configs/audio_synthetic.py", *SMALL, "--config.num_steps=120",
    "--config.log_every=10", "--config.eval_every=40", "--config.save_every=20",
    "--config.model.norm=batch", "--config.optim.ema_decay=0.9", "--config.probe.tasks=()",
)  # fmt: skip


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """Records of the run that others stop and resume."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    run(*STOPPED, "--workdir", workdir)
    return records(workdir, *CLOCK)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_stop_and_resume_equals_never_stopped(never_stopped, tmp_path, how):
    parts = tmp_path / "parts"
    process = subprocess.Popen(
        command(*STOPPED, "--workdir", parts), cwd=ROOT, env={**os.environ, **ONE_DEVICE},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (parts / "checkpoints" / "40").exists():
            break
        time.sleep(0.01)
    process.send_signal(how)
    output, _ = process.communicate(timeout=120)
    if how != signal.SIGKILL:
        assert f"stopped by {how.name}; to resume: " in output
        assert "-m experiments.train --config audio_synthetic" in output
        assert process.returncode == 0
    run(*STOPPED, "--workdir", parts)
    assert records(parts, *CLOCK) == never_stopped


def write_librispeech(root, make):
    """A folder in LibriSpeech layout, with the paper's lists and alignments."""
    recordings, labels = make.recordings, make.labels
    phones, train, test = [], [], []
    for i, speaker in enumerate(recordings.speakers):
        number = 100 + int(speaker.split("-")[1])
        chapter = root / "train-clean-100" / str(number) / "7"
        chapter.mkdir(parents=True, exist_ok=True)
        name = f"{number}-7-{i:04d}"
        soundfile.write(chapter / f"{name}.flac", read_all(recordings, i) * 0.5, 16000)
        with (chapter / f"{number}-7.trans.txt").open("a") as file:
            file.write(f"{name} SOME WORDS\n")
        phones.append(" ".join([name, *map(str, labels[recordings.names[i]])]))
        (test if i % 4 == 0 else train).append(name)
    for file, lines in (("phones.txt", phones), ("train.txt", train), ("test.txt", test)):
        (root / file).write_text("\n".join(lines) + "\n")


def test_librispeech_config_runs_on_its_layout(tmp_path):
    make = make_synthetic(
        num_speakers=3, utterances_per_speaker=6, seconds=1.5, chain=phone_chain(5), seed=1
    )
    write_librispeech(tmp_path, make)
    flags = (
        "--config", "configs/audio_librispeech.py", *SMALL,
        "--config.data.path", tmp_path / "train-clean-100",
        "--config.data.train_list", tmp_path / "train.txt",
        "--config.data.test_list", tmp_path / "test.txt",
        "--config.data.phones", tmp_path / "phones.txt",
        "--config.num_steps=6", "--config.log_every=2", "--config.optim.warmup_steps=2",
        "--config.negatives.overlap=True",  # 64 windows of 13 utterances
    )  # fmt: skip
    done = run(*flags, "--workdir", tmp_path / "run")
    assert "3 speakers, 13 training utterances" in done.stdout
    scores = read_scores(tmp_path / "run")
    assert {score.task for score in scores} == {"phones", "speakers"}
    assert {s.features for s in scores} == {"c", "z", "mfcc", "random c"}
    last = records(tmp_path / "run")[-3]
    assert last["n"] == [8 * 16] * 4, "eight groups of eight windows of 16 latents"

    # Judged on other recordings, by their own labels: the run's lists say nothing of them.
    other = make_synthetic(
        num_speakers=2, utterances_per_speaker=8, seconds=1.2, chain=phone_chain(3), seed=2
    )
    write_librispeech(tmp_path / "other", other)
    (tmp_path / "other/phones.txt").rename(tmp_path / "other/others.txt")
    done = run(
        "--workdir", tmp_path / "run", f"--data.path={tmp_path / 'other'}",
        "--data.speaker_level=2", f"--data.phones={tmp_path / 'other/others.txt'}",
        "--probe.features=('c','mfcc')", module="probe",
    )  # fmt: skip
    assert "2 speakers" in done.stdout
    both = read_scores(tmp_path / "run")
    new = [s for s in both if s.data in ("other", "others")]
    assert len(both) == len(scores) + len(new)
    assert {(s.task, s.data) for s in new} == {("speakers", "other"), ("phones", "others")}
    assert {s.features for s in new} == {"c", "mfcc"}
    wrong = run("--workdir", tmp_path / "run", "--probe.delya=1", module="probe", status=2)
    assert "the config has no key probe.delya; did you mean probe.delay?" in wrong.stderr


@pytest.mark.whole
@pytest.mark.network
def test_voices_train_and_probe(tmp_path):
    """The demo's own data, fetched by the demo's own command; a few steps of a small model."""
    flags = (
        "--config", "configs/audio_voices.py", *SMALL, "--config.num_steps=60",
        "--config.log_every=20", "--config.eval_every=60", "--config.optim.warmup_steps=5",
        "--config.optim.learning_rate=1e-2",
        "--config.probe.minutes_per_speaker=0.5", "--config.probe.features=('c','mfcc')",
    )  # fmt: skip
    done = run(*flags, "--workdir", tmp_path / "run", how=ONE_DEVICE_POLISHED)
    assert "9 speakers" in done.stdout
    phones = [score for score in read_scores(tmp_path / "run") if score.task == "phones"]
    assert {score.data for score in phones} == {"festvox_ru", "asterisk_en"}
    mfcc = next(s for s in phones if s.features == "mfcc" and s.data == "festvox_ru")
    assert mfcc.value == pytest.approx(0.614, abs=0.02)
    losses = [r["loss"] for r in records(tmp_path / "run") if r["split"] == "train"]
    assert losses[-1] < 4 * np.log(8 * 16)


def test_lists_of_ones_own_take_the_place_of_the_voices_split(tmp_path, monkeypatch):
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
    monkeypatch.setattr(audio_data, "prepare_voices", lambda cache, log: root)
    config = audio_voices.get_config()
    given = audio_data.load_data(config, str)
    assert sorted(given.train.names) == ["a", "b", "c"]
    config.data.train_list = str(root / "own_train.txt")
    config.data.test_list = str(root / "own_test.txt")
    own = audio_data.load_data(config, str)
    assert (sorted(own.train.names), sorted(own.test.names)) == (["a"], ["b", "c"])


def test_labels_and_items_of_damaged_recordings_are_left_out(tmp_path, monkeypatch):
    """One that is cut short lost the end of its labels, and one that is no sound all of them."""
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
    assert "phones: the labels of 2 damaged recordings are left out" in said
    assert "x.item: 3 items of damaged recordings are left out" in said
    audio_probes.probe_tasks(config, read)
    (root / "a3.wav").write_bytes(whole)
    assert not [line for line in said if "none of these recordings" in line]
    labels.write_text(labels.read_text().replace("a5 ", "a5.wav ").replace("a6 ", "ann/a6 "))
    audio_data.load_data(config, said.append)
    assert (
        "phones: 2 of 11 labelled utterances are none of these recordings (a5.wav, ann/a6); 9 of "
        "11 recordings have labels; "
    ) in "\n".join(said)
    config.data.item_file = str(items.rename(tmp_path / "phones.item"))
    with pytest.raises(UserError, match=r"would both be probes/phones\.item"):
        audio_data.load_data(config, said.append)
    config.data.item_file = str((tmp_path / "phones.item").rename(items))
    labels.write_text(labels.read_text().replace("a3 ", "a3 " + "0 " * 50))
    read = audio_data.load_data(config, said.append)
    with pytest.raises(UserError, match="a3 has 250 labels but 200 frames"):  # is of another
        audio_probes.probe_tasks(config, read)


def test_a_delay_reads_contexts_later_and_nothing_else():
    config = audio_voices.get_config()
    config.probe.delay = 2
    part = make_synthetic(
        num_speakers=2, utterances_per_speaker=1, seconds=0.1, chain=phone_chain(2), seed=0
    ).recordings
    encoder = types.SimpleNamespace(stride=160, frames_around=(0, 0))
    model = types.SimpleNamespace(
        module=types.SimpleNamespace(encoder=encoder),
        embed=lambda variables, x: (x[:, ::160, None], 2 * x[:, ::160, None]),
    )
    made = make_embed(config, model, {})(("c", "z"), [part])
    for i, name in enumerate(part.names):
        every = read_all(part, i)[::160]
        np.testing.assert_allclose(made["z"][name][:, 0], every, rtol=1e-6)
        later = 2 * np.append(every[2:], [every[-1]] * 2)
        np.testing.assert_allclose(made["c"][name][:, 0], later, rtol=1e-6)
