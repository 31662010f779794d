"""Invalid input: one-line errors, exit status 2 and no lost data."""

import contextlib
import functools
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest
import soundfile

from configs import audio_synthetic
from configs.keys import make_config
from configs.words import KEYS as WORDS_KEYS
from cpc.files import plain, write_json
from cpc.train import make_mesh
from cpc.types import UserError
from experiments.command import cli
from experiments.command.config import load_config, with_settings
from experiments.command.run_dir import check_same_run, identify_run
from experiments.kinds.registry import CONTRASTIVE, KINDS, kind_of, pipeline_of, read_contrastive
from experiments.train import run
from experiments.training import contrastive
from experiments.training.checks import check_signals
from experiments.training.contrastive import interpret
from tests import commands
from tests.experiments.test_audio import TINY
from tests.fake_run import write_records

DEMO = "--config=configs/audio_voices.py"
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def config():
    settings = {"num_steps": 2, "data.window_samples": 2560, "evaluate.num_windows": 0}
    return with_settings(audio_synthetic.get_config(), TINY | settings)


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))


def mistake(config, workdir, words):
    with pytest.raises(UserError, match=words) as caught, contextlib.redirect_stdout(io.StringIO()):
        run(config, workdir and str(workdir))
    assert "\n" not in str(caught.value).strip()


def write_clips(folder, seconds=(1.0, 1.0, 1.0, 1.0), speakers=2):
    rng = np.random.default_rng(0)
    for i, length in enumerate(seconds):
        path = folder / f"speaker{i % speakers}" / f"clip{i}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.1 * rng.normal(size=int(16000 * length)), 16000)


@pytest.mark.parametrize(("key", "value", "words"), [
    ("model.context", "gruu", "context must be gru, lstm.*'gruu'"),
    ("probe.ctc_minutes", ("x",), "ctc_minutes must .* float.*'x'"),
    ("kind", "images", "kind must .*audio, image.*'images'"),
    ("seed", -1, "seed must .*at least 0 and below 4294967296 .*-1"),
    ("negatives.temperature", 0.0, "temperature must be above 0 .*0.0"),
    ("optim.clip_norm", float("nan"), "clip_norm must .*nan"),
    ("model.width", "wide", "width must .*int.*'wide'"), ("model.widht", 3, r"mean model\.width"),
    ("model.norm", None, r"key model\.norm is missing"),
    ("model.padding", "valid", "padding is 'valid': "),
    ("negatives.shards", 3, "does not divide into 3 shards"),
    ("negatives.rule", "excluding_sequence", "no negatives at offset 1: raise"),
    ("probe.features", (), r"features is \(\)"),
    ("optim.warmup_steps", 9, "warmup_steps is 9 .* is 2"),
    ("data.batch_size", 12, "12 cannot be split over 8 devices"),
    ("data.window_samples", 2**26, "window_samples is .*synthetic"),
])  # fmt: skip
def test_invalid_values_are_rejected(config, key, value, words):
    section, _, name = key.rpartition(".")
    place = config[section] if section else config
    with place.unlocked(), place.ignore_type():
        place[name] = value
        if value is None:
            del place[name]
    if key == "negatives.rule":
        config.negatives.shards = config.data.batch_size = 8
    with pytest.raises(UserError, match=words) as caught:
        interpret(kind_of(config), config, make_mesh(8))
    assert "\n" not in str(caught.value)


@pytest.fixture
def interrupts():
    """Restore Ctrl-C, which shells ignore in background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_in_a_library():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("Invalid bounding box") from None


@pytest.mark.parametrize(("main", "status", "said"), [
    (lambda: jax.numpy.zeros(2**46).block_until_ready(), 2, "a device has too little memory ("),
    (lambda: np.zeros(2**58), 2, "this machine has too little memory ("),
    (interrupt_in_a_library, 130, "interrupted\n"),
])  # fmt: skip
def test_failures_are_reported_in_one_line(capsys, monkeypatch, interrupts, main, status, said):
    monkeypatch.delenv("XLA_FLAGS")
    with pytest.raises(SystemExit) as ended:
        cli._guard(main, [], False)
    found = capsys.readouterr().err
    assert (ended.value.code, found.count("\n")) == (status, 1)
    assert found.startswith(f"error: {said}")
    assert ("optim.accumulate=2" in found) == (status == 2)


def test_unusable_gpu_warning_is_shown():
    """JAX's warning passes; other messages about devices do not."""
    code = """
from jax._src import xla_bridge
from experiments.command import cli
import jax
cli.run(lambda: (jax.devices(), xla_bridge.logger.warning("Falling back to cpu.")))
"""
    # jax sets this variable on import.
    how = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=how)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert "Falling back to cpu." in line


def test_invalid_runs_create_no_directory(config, tmp_path):
    mistake(config, None, "--workdir is required")
    for device, words in (("cuda", "auto, cpu, gpu, tpu"), ("gpu", "No gpu device")):
        with pytest.raises(UserError, match=words):
            run(config, str(tmp_path / "run"), device)
    config.probe.features = ()
    mistake(config, tmp_path / "run", "probe.features")
    assert not (tmp_path / "run").exists()


def test_config_of_another_revision_is_rejected(tmp_path):
    keys = CONTRASTIVE["image"].KEYS
    config = make_config(keys)
    recorded = json.loads(json.dumps(plain(config)))  # tuples become lists
    assert load_config(recorded, keys) == config
    write_json(tmp_path / "environment.json", {"git_revision": "abc123"})
    less = {name: value for name, value in recorded.items() if name != "seed"}
    for other, change in ((less, "lacks the key seed"), (recorded | {"sead": 1}, "the key sead")):
        write_json(tmp_path / "config.json", other)
        with pytest.raises(UserError, match=f"{change}.*revision abc123"):
            read_contrastive(tmp_path)
        with pytest.raises(UserError, match=f"{change}.*revision abc123"):
            check_same_run(tmp_path, config)


@pytest.fixture
def folder_config(config, tmp_path):
    settings = {"data.source": "folder", "data.path": str(tmp_path / "clips"), "probe.tasks": ()}
    return with_settings(config, settings)


def test_unusable_folders_are_rejected(folder_config, tmp_path):
    refused = functools.partial(mistake, workdir=tmp_path / "run")
    refused(with_settings(folder_config, {"data.path": ""}), words=r"data\.path is ''")
    refused(folder_config, words="clips")
    (tmp_path / "clips").mkdir()
    refused(folder_config, words="no recordings")
    write_clips(tmp_path / "clips", (0.03, 0.03, 0.03, 0.03))
    short = with_settings(folder_config, {"model.num_offsets": 1, "model.horizon": 4})
    refused(short, words=r"480 samples \(0.03 s\).*lower model.horizon")
    for part, names in (("train", "clip0\nclip1\nclip77"), ("test", "clip2")):
        folder_config.data[f"{part}_list"] = str(tmp_path / part)
        (tmp_path / part).write_text(names)
    refused(folder_config, words="clip77")
    for given in ("train_list", "test_list"):
        with pytest.raises(UserError, match=rf"data\.{given} is"):
            check_signals(with_settings(folder_config, {f"data.{given}": ""}))


def test_data_without_negatives_are_rejected(folder_config, tmp_path, monkeypatch):
    monkeypatch.setattr(contrastive.training, "train", None)
    write_clips(tmp_path / "clips", (0.1, 0.1), speakers=1)
    folder_config.negatives.rule = "excluding_sequence"
    mistake(folder_config, tmp_path / "run", "no anchor in 2 batches a negative")
    write_clips(tmp_path / "clips", (0.5,) * 6, speakers=1)
    folder_config.loss.name, folder_config.loss.cosine = "sup_con", True
    mistake(folder_config, tmp_path / "run2", "several values of speaker")


def test_skipped_truncated_and_new_files_are_reported(folder_config, tmp_path, monkeypatch, capsys):
    work = types.SimpleNamespace(train=lambda: ("SIGTERM", None))
    monkeypatch.setattr(contrastive, "make_work", lambda *_: work)
    write_clips(tmp_path / "clips", (1.0,) * 11 + (0.1,))
    (tmp_path / "clips" / "speaker0" / "empty.wav").touch()
    folder_config.data.max_skipped_fraction = 0.01
    mistake(folder_config, tmp_path / "run", "1 of 13")
    folder_config.data.max_skipped_fraction = 0.2
    path = tmp_path / "clips" / "speaker0" / "clip0.wav"
    path.write_bytes(path.read_bytes()[:20_000])
    for _ in range(2):
        run(folder_config, str(tmp_path / "run"))
    assert re.search(r"\d of them, 0.00 h, are shorter than a window", capsys.readouterr().out)
    listed = (tmp_path / "run" / "skipped.txt").read_text()
    assert all(word in listed for word in ("empty.wav", "clip0.wav: kept, but truncated"))
    identity = identify_run(tmp_path / "run", folder_config)
    write_records(tmp_path / "run", [{"step": 1, "split": "train"}], identity=identity)
    write_clips(tmp_path / "clips", (1.0,) * 14)
    words = r"changed since .*run started \(was 10 to train, 2 to test; is 12 to train, 2 to test\)"
    mistake(folder_config, tmp_path / "run", words)
    run(folder_config, str(tmp_path / "other"))


@pytest.mark.parametrize(("kind", "source", "key"), [
    ("audio", "synthetic", "phones"), ("image", "fashion_mnist", "path"),
    ("text", "words+books", "path"), ("series", "ar1", "file_labels"),
])  # fmt: skip
def test_keys_unused_by_the_source_are_rejected(kind, source, key):
    config = make_config(CONTRASTIVE[kind].KEYS if kind in CONTRASTIVE else WORDS_KEYS)
    config.data.source, config.data[key] = source, "mine"
    said = rf"^data.{key} .*data.source {re.escape(source)} .*'mine'"
    with pytest.raises(UserError, match=said):
        pipeline_of(config).interpret(KINDS[kind], config)


@pytest.mark.parametrize(("flags", "words"), [
    ([DEMO, "--config.modle.width=3"], "modle"), ([DEMO, "--config.model.width=wide"], "wide"),
    ([DEMO, "--learning_rate=3"], "learning_rate"), ([], "--config is required"),
    ([DEMO, "--config.data.path=~nouser/x"], "config.data.path '~nouser/x'"),
    (["--config=exits.py"], "(status 5)"), (["--config=fails.py"], "KeyError: widht did you mean"),
    ([DEMO, "xla"], "--xla_nope=3"),
])  # fmt: skip
def test_commands_report_errors_in_one_line(tmp_path, flags, words):
    text = "def get_config():\n    raise KeyError('widht\\n did you mean \\'width\\'?')"
    (tmp_path / "fails.py").write_text(text)
    (tmp_path / "exits.py").write_text("import sys; sys.exit(5)")
    files = {f"--config={name}.py": f"--config={tmp_path}/{name}.py" for name in ("fails", "exits")}
    how = commands.ONE_DEVICE | ({"XLA_FLAGS": "--xla_nope=3"} if "xla" in flags else {})
    flags = [files.get(flag, flag) for flag in flags if flag != "xla"]
    said = commands.run("experiments.train", *flags, status=2, how=how).stderr
    assert said.startswith("error: ")
    assert words in said
    assert said.count("\n") == 1
    assert "\\" not in said


def test_broken_pipe_ends_a_command_silently(tmp_path, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        for words, status in ((["experiments.status", tmp_path], 141), (["cpc", "--help"], 0)):
            words = [sys.executable, "-m", *words]
            done = subprocess.run(words, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE)
            assert (done.returncode, done.stderr) == (status, b"")
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            cli._parse(["experiments.status", "--help"])
        assert ended.value.code == 0
    done = commands.run("experiments.train", "--help")
    assert all(word in done.stdout for word in ("--workdir", "cpc train"))


def test_interrupt_swallowed_by_a_callback_is_raised_again(interrupts):
    said = []

    def swallow():
        cli.interrupt_again(types.SimpleNamespace(exc_type=KeyboardInterrupt), said.append)
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        swallow()
    assert not said
    other = types.SimpleNamespace(exc_type=ValueError)
    cli.interrupt_again(other, said.append)
    assert said == [other]


@pytest.mark.parametrize(("code", "status", "said"), [
    ("import sys; sys.argv[0] = '-m'; import experiments; raise KeyboardInterrupt",
     -signal.SIGINT, "error: interrupted\n"),
    ("import os; os.name = 'nt'; import experiments", 2, "on Windows"),
])  # fmt: skip
def test_failed_imports_are_reported_in_one_line(code, status, said):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1)
    assert said in done.stderr
