"""Bad input: one clear sentence, status 2, nothing lost."""

import contextlib
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

import numpy as np
import pytest
import soundfile

from configs.keys import make_config
from configs.words import KEYS as WORDS_KEYS
from cpc.data import read_folder
from cpc.files import plain, write_json
from cpc.results.score import read_records
from cpc.train import make_mesh
from cpc.types import UserError
from experiments.command import cli
from experiments.command.config import check_config, judged_on, load_config, with_settings
from experiments.command.run_dir import check_same_run
from experiments.kinds.registry import CONTRASTIVE, KINDS, kind_of, read_contrastive
from experiments.training.checks import check_shared
from experiments.training.contrastive import interpret
from tests import commands
from tests.commands import ONE_DEVICE
from tests.plans import plan_of

DEMO = "--config=configs/audio_voices.py"
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audio():
    """The experiment as a module; its flags are parsed, as absl wants."""
    from absl import flags

    from experiments.train import run

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    return types.SimpleNamespace(run=run)


@pytest.fixture
def config():
    from configs import audio_synthetic

    c = audio_synthetic.get_config()
    c.num_steps, c.log_every, c.eval_every, c.save_every = 2, 1, 0, 0
    c.optim.warmup_steps = 0
    c.data.window_samples = 2560
    c.model.width = c.model.context_width = 8
    c.model.num_offsets = 3
    c.evaluate.num_windows = 0
    return c


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CPC_DATA", str(tmp_path / "cache"))


def mistake(audio, config, workdir, words):
    """Run, to one sentence."""
    with pytest.raises(UserError, match=words) as caught, contextlib.redirect_stdout(io.StringIO()):
        audio.run(config, workdir and str(workdir))
    assert "\n" not in str(caught.value).strip()


def prepare(config):
    """Do all that a run does before it trains or writes anything."""
    kind = CONTRASTIVE["audio"]
    plan = interpret(kind, config)
    data = kind.load_data(config, str)
    kind.make_problem(plan, data)
    kind.probe_tasks(config, data)


def refused(config, words):
    with pytest.raises(UserError, match=words) as caught:
        prepare(config)
    assert "\n" not in str(caught.value).strip()


def write_clips(folder, seconds=(1.0, 1.0, 1.0, 1.0), speakers=2):
    rng = np.random.default_rng(0)
    for i, length in enumerate(seconds):
        path = folder / f"speaker{i % speakers}" / f"clip{i}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, 0.1 * rng.normal(size=int(16000 * length)), 16000)


@pytest.mark.parametrize(("key", "value", "words"), [
    ("model.context", "gruu", "model.context is 'gruu': choose one of gru, lstm"),
    ("probe.tasks", ("phone",), "probe.tasks has 'phone'"),
    ("probe.ctc_minutes", ("x",), "ctc_minutes has 'x': its entries must be of type float"),
    ("kind", "images", "kind is 'images': choose one of audio, image"),
    ("seed", -1, "seed is -1: it must be at least 0 and below 4294967296"),
    ("seed", 2**63, "seed is 9223372036854775808: it must be at least 0 and below 4294967296"),
    ("num_steps", 0, "num_steps is 0: it must be from 1 to 1000000000"),
    ("num_steps", 10**10, "num_steps is 10000000000"),
    ("negatives.temperature", 0.0, "temperature is 0.0: it must be above 0"),
    ("loss.prior", 1.0, "prior is 1.0: it must be at least 0 and below 1"),
    ("optim.clip_norm", float("nan"), "clip_norm is nan"),
    ("model.context_layers", 5000, "model.context_layers is 5000: it must be from 1 to 256"),
    ("model.padding", "valid", "model.padding is 'valid': there are fewer latents than labels"),
    ("negatives.shards", 3, "does not divide into 3 shards"),
    ("probe.features", (), r"probe.features is \(\): name one or more"),
    ("optim.warmup_steps", 9, "is 9 .* is 2: .* add --config.optim.warmup_steps=0"),
    ("data.batch_size", 12, "12 cannot be split over 8 devices"),
    ("data.window_samples", 2**26, "data.window_samples is .*synthetic"),
    ("data.train_list", "x", "data.train_list is 'x', and data.source is synthetic"),
])  # fmt: skip
def test_a_value_that_cannot_be_meant(config, key, value, words):
    config = with_settings(config, {key: value})
    with pytest.raises(UserError, match=words) as caught:
        interpret(kind_of(config), config, make_mesh(8))
    assert "\n" not in str(caught.value)


def test_a_run_is_refused_before_anything_is_made(audio, config, tmp_path):
    config.probe.features = ()
    mistake(audio, config, tmp_path / "run", "probe.features is")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "where"),
    [
        ("jax.numpy.zeros(2**46).block_until_ready()", "a device"),
        ("numpy.zeros(2**58)", "this machine"),
    ],
)
def test_too_little_memory_is_one_sentence(made, where):
    code = f"""
from experiments.command import cli
import jax.numpy, numpy
cli.run(lambda: {made})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {where} has too little memory (")
    assert done.stderr.count("\n") == 1
    assert "optim.accumulate=2" in done.stderr


@pytest.mark.slow
def test_a_gpu_that_jax_cannot_use_is_seen():
    """As where the extra is not installed, or the driver is too old: the run goes on without."""
    code = """
from jax._src import xla_bridge
from experiments.command import cli
cli.run(lambda: xla_bridge.logger.warning("Falling back to cpu."))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Falling back to cpu." in done.stderr


@pytest.mark.slow
def test_xla_says_nothing_of_its_devices():
    code = """
from experiments.command import cli
import jax
cli.run(lambda: print(jax.devices()))
"""
    # jax itself sets it, here too, unless jaxlib comes first.
    how = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=how)
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_and_unknown_keys(config):
    del config.model.norm
    refused(config, r"lacks the key model\.norm")
    config.model.norm = "none"
    config.model.widht = 3
    refused(config, r"no key model\.widht; did you mean model\.width")
    del config.model.widht, config.model.width
    config.model.width = "wide"
    refused(config, r"model\.width is 'wide': it must be of type int")


def test_no_workdir(audio, config):
    mistake(audio, config, None, "--workdir is required")


def test_a_wrong_device(audio, config, tmp_path):
    with pytest.raises(UserError, match="choose one of auto, cpu, gpu, tpu"):
        audio.run(config, str(tmp_path / "run"), "cuda")
    with pytest.raises(UserError, match="No gpu device"):
        audio.run(config, str(tmp_path / "run"), "gpu")


def test_one_window_and_no_negatives(config):
    settings = {"data.batch_size": 8, "negatives.shards": 8, "negatives.rule": "excluding_sequence"}
    with pytest.raises(UserError, match="no negatives at offset 1: raise"):
        plan_of(with_settings(config, settings))


@pytest.fixture
def folder_config(config, tmp_path):
    config.data.source = "folder"
    config.data.path = str(tmp_path / "clips")
    config.data.batch_size = 8
    config.probe.tasks = ()
    return config


def test_a_folder_that_is_not_there_or_empty(folder_config, tmp_path):
    refused(folder_config, "clips")
    (tmp_path / "clips").mkdir()
    refused(folder_config, "no recordings in")
    folder_config.data.path = ""
    refused(folder_config, r"data\.path is ''")


def test_clips_too_short_to_predict_anything(folder_config, tmp_path):
    write_clips(tmp_path / "clips", (0.03, 0.03, 0.03, 0.03))
    words = r"recordings has 480 samples \(0.03 s\), of which 3 latents .* lower model.num_offsets"
    refused(folder_config, words)
    folder_config.model.num_offsets, folder_config.model.horizon = 1, 4
    refused(folder_config, "lower model.horizon")


@pytest.mark.slow
def test_nothing_to_contrast_with(audio, folder_config, tmp_path):
    """One clip to train on is no negative of itself; one speaker has none of another group."""
    write_clips(tmp_path / "clips", (0.1, 0.1), speakers=1)
    folder_config.negatives.rule = "excluding_sequence"
    mistake(audio, folder_config, tmp_path / "run", "not one anchor of 2 batches has a negative")
    write_clips(tmp_path / "one", (0.5,) * 6, speakers=1)
    folder_config.data.path = str(tmp_path / "one")
    folder_config.loss.name, folder_config.loss.cosine = "sup_con", True
    mistake(audio, folder_config, tmp_path / "run2", "are of one speaker")


@pytest.mark.slow
def test_a_folder_of_mostly_short_clips_trains_and_says_so(audio, folder_config, tmp_path):
    """Windows of 0.16 s: the network trained on labels, too, sees clips of less."""
    write_clips(tmp_path / "clips", (0.1, 0.05, 0.12, 0.1, 0.3, 0.08, 0.02, 0.1))
    folder_config.probe.tasks, folder_config.probe.num_epochs = ("speakers",), 1
    folder_config.probe.features = ("c", "supervised")
    folder_config.eval_every, folder_config.evaluate.num_windows = 2, 8
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        audio.run(folder_config, str(tmp_path / "run"))
    words = r"[56] of them, 0.00 h, are shorter than a window and filled up"
    assert re.search(words, said.getvalue())
    records = read_records(tmp_path / "run", [])
    assert {record["split"] for record in records} == {"train", "test"}
    assert all(np.isfinite(record["nats"]) for record in records)
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_bad_files_among_good_ones_are_skipped_and_listed(audio, folder_config, tmp_path):
    write_clips(tmp_path / "clips", (1.0,) * 12)
    (tmp_path / "clips" / "speaker0" / "empty.wav").touch()
    folder_config.data.max_skipped_fraction = 0.2
    with contextlib.redirect_stdout(io.StringIO()):
        audio.run(folder_config, str(tmp_path / "run"))
    assert "empty.wav" in (tmp_path / "run" / "skipped.txt").read_text()
    assert (tmp_path / "run" / "report.html").exists()
    folder_config.data.max_skipped_fraction = 0.01
    mistake(audio, folder_config, tmp_path / "run2", "1 of 13")


def test_lists_that_name_absent_utterances(folder_config, tmp_path):
    write_clips(tmp_path / "clips")
    (tmp_path / "train.txt").write_text("clip0\nclip1\nclip77\n")
    (tmp_path / "test.txt").write_text("clip2\n")
    folder_config.data.train_list = str(tmp_path / "train.txt")
    folder_config.data.test_list = str(tmp_path / "test.txt")
    refused(folder_config, "clip77")


@pytest.mark.parametrize("given", ["train", "test"])
def test_one_list_without_the_other(folder_config, given):
    folder_config.data[f"{given}_list"] = "some.txt"
    with pytest.raises(UserError, match=rf"data\.{given}_list is 'some.txt'.*set both, or neither"):
        check_shared(folder_config)


@pytest.mark.slow
def test_a_pack_that_rots_ends_a_run_and_is_packed_anew_by_the_next(audio, folder_config, tmp_path):
    write_clips(tmp_path / "clips", (1.0,) * 12)
    source = read_folder(tmp_path / "clips")
    with contextlib.redirect_stdout(io.StringIO()):
        audio.run(folder_config, str(tmp_path / "run"))
    (samples,) = (tmp_path / "cache" / "packs").glob("*/samples.int16")
    status, content = samples.stat(), bytearray(samples.read_bytes())
    content[:: 1 << 16] = bytes(byte ^ 4 for byte in content[:: 1 << 16])
    samples.write_bytes(content)
    os.utime(samples, ns=(status.st_atime_ns, status.st_mtime_ns))
    mistake(audio, folder_config, tmp_path / "run2", "is damaged .* run the same command again")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        audio.run(folder_config, str(tmp_path / "run2"))
    assert "is damaged, or of another version: packing again" in said.getvalue()
    whole = np.concatenate([source.read(i, 0, 16_000) for i in range(12)])
    np.testing.assert_array_equal(np.fromfile(samples, "<i2"), whole)


@pytest.mark.slow
def test_a_recording_that_is_cut_short_is_listed(audio, folder_config, tmp_path):
    write_clips(tmp_path / "clips", (1.0,) * 12)
    path = tmp_path / "clips" / "speaker0" / "clip0.wav"
    path.write_bytes(path.read_bytes()[:20_000])
    with contextlib.redirect_stdout(io.StringIO()):
        audio.run(folder_config, str(tmp_path / "run"))
    listed = (tmp_path / "run" / "skipped.txt").read_text()
    assert "clip0.wav: kept, but cut short" in listed


def test_labels_that_do_not_match_the_frames(folder_config, tmp_path):
    write_clips(tmp_path / "clips", (1.0,) * 8)
    lines = [f"clip{i} " + " ".join("01"[t % 2] for t in range(100)) for i in range(8)]
    lines[3] = "clip3 0 1 0 1"
    (tmp_path / "phones.txt").write_text("\n".join(lines))
    folder_config.data.phones = str(tmp_path / "phones.txt")
    folder_config.probe.tasks = ("phones",)
    folder_config.probe.hidden_width = 0
    refused(folder_config, "clip3")


def test_probes_without_labels_or_with_one_speaker(folder_config, tmp_path):
    write_clips(tmp_path / "clips", speakers=1)
    folder_config.probe.tasks = ("speakers",)
    refused(folder_config, "one speaker")
    folder_config.probe.tasks = ("phones",)
    refused(folder_config, "no phone labels")


def test_probes_that_nothing_could_answer_are_refused_before_the_training(folder_config, tmp_path):
    write_clips(tmp_path / "clips", (1.0,) * 8, speakers=4)
    (tmp_path / "train.txt").write_text("clip0\nclip1\nclip4\nclip5\n")
    (tmp_path / "test.txt").write_text("clip2\nclip3\nclip6\nclip7\n")
    folder_config.data.train_list = str(tmp_path / "train.txt")
    folder_config.data.test_list = str(tmp_path / "test.txt")
    folder_config.probe.tasks = ("speakers",)
    refused(folder_config, "none of the 4 test utterances is by one of")
    folder_config.probe.tasks, path = ("phones",), tmp_path / "phones.txt"
    folder_config.data.phones = str(path)
    labels = {name: " ".join("01"[t % 2] for t in range(100)) for name in ("clip0", "clip2")}
    path.write_text("".join(f"{name} {own}\n" for name, own in labels.items()))
    words = "phones labels 1 training utterances with 2 different phones and 1 test utterances"
    refused(folder_config, words)
    path.write_text("".join(f"clip{i} {' '.join(100 * ['0'])}\n" for i in range(8)))
    words = "4 training utterances with 1 different phones and 4 test utterances"
    refused(folder_config, words)


@pytest.mark.parametrize(("kind", "source", "key"), [
    ("audio", "voices", "path"),
    ("audio", "synthetic", "phones"),
    ("image", "fashion_mnist", "path"),
    ("text", "words+books", "path"),
    ("text", "grammar", "path"),
    ("words", "books", "path"),
    ("series", "ar1", "step_label"),
    ("series", "ar1", "file_labels"),
])  # fmt: skip
def test_keys_that_a_source_does_not_read_are_refused(kind, source, key):
    """The packaged data were trained on, in silence, in place of the user's own."""
    config = make_config(CONTRASTIVE[kind].KEYS if kind in CONTRASTIVE else WORDS_KEYS)
    config.data.source, config.data[key] = source, "mine"
    said = rf"^data.{key} is 'mine', and data.source is {re.escape(source)}, which does not read it"
    with pytest.raises(UserError, match=said):
        KINDS[kind].interpret(KINDS[kind], config)


def test_a_recorded_config_is_read_back():
    config = make_config(CONTRASTIVE["image"].KEYS)
    recorded = json.loads(json.dumps(plain(config)))  # tuples come back as lists
    assert load_config(recorded, CONTRASTIVE["image"].KEYS) == config


@pytest.mark.parametrize("change", ["lacks the key seed", "has the key sead"])
def test_a_config_of_another_version_names_its_revision(tmp_path, change):
    config = make_config(CONTRASTIVE["image"].KEYS)
    recorded = plain(config)
    recorded.pop("seed") if "lacks" in change else recorded.update(sead=1)
    write_json(tmp_path / "config.json", recorded)
    write_json(tmp_path / "environment.json", {"git_revision": "abc123"})
    said = f"{change}.*revision abc123"
    with pytest.raises(UserError, match=said):
        read_contrastive(tmp_path)
    with pytest.raises(UserError, match=said):
        check_same_run(tmp_path, config)


def test_a_look_at_other_data_forgets_what_their_source_does_not_read():
    keys = CONTRASTIVE["image"].KEYS
    config = with_settings(make_config(keys), {"data.source": "tfds", "data.name": "cifar10"})
    check_config(judged_on(config, keys, ["--config.data.source=fashion_mnist"]), keys)
    assert judged_on(config, keys, ["--config.data.path=there"]).data.name == "cifar10"
    packaged = judged_on(make_config(keys), keys, ["--config.data.path=mine"])
    with pytest.raises(UserError, match=r"set data\.source to folder or tfds, or leave data\.path"):
        check_config(packaged, keys)


@pytest.mark.slow
def test_a_run_does_not_go_on_where_its_test_utterances_would_train(audio, folder_config, tmp_path):
    write_clips(tmp_path / "clips", (1.0,) * 12)
    with contextlib.redirect_stdout(io.StringIO()):
        audio.run(folder_config, str(tmp_path / "run"))
        audio.run(folder_config, str(tmp_path / "run"))
    write_clips(tmp_path / "clips", (1.0,) * 14)
    words = r"changed since .*run started \(was 10 to train, 2 to test; is 12 to train, 2 to test\)"
    mistake(audio, folder_config, tmp_path / "run", words)
    with contextlib.redirect_stdout(io.StringIO()):
        audio.run(folder_config, str(tmp_path / "other"))


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "words"), [
    ([DEMO, "--config.modle.width=3"], "modle"),
    ([DEMO, "--config.model.widht=3"], "widht"),
    ([DEMO, "--config.model.width=wide"], "wide"),
    (["--config=configs/absent.py"], "absent.py"),
    ([DEMO, "--learning_rate=3"], "learning_rate"),
    ([DEMO, "--device=cuda"], "choose one of auto, cpu, gpu, tpu"),
    ([DEMO, "surprise"], "surprise"),
    ([DEMO], "--workdir is required"),
    ([], "--config is required"),
])  # fmt: skip
def test_flags_end_in_one_sentence(flags, words):
    done = commands.run("experiments.train", *flags, status=2)
    (sentence,) = done.stderr.strip().splitlines()
    assert sentence.startswith("error: ")
    assert words in sentence


@pytest.mark.slow
def test_help_is_for_a_newcomer():
    for module, words in (("train", "--workdir"), ("probe", "--task")):
        done = commands.run(f"experiments.{module}", "--help")
        assert words in done.stdout
        assert f"cpc {module}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("word", "status"), [("here", 141), ("--help", 0)])
def test_a_command_whose_output_nobody_reads_any_more_ends_silently(tmp_path, word, status):
    """As behind `| head`."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "experiments.status", word.replace("here", str(tmp_path))]
    with os.fdopen(writing) as stdout:
        done = subprocess.run(
            words, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.slow
def test_a_full_disk_ends_in_one_sentence_and_loses_nothing(tmp_path):
    """Files may grow to 200 kB here: the first checkpoint does not fit."""
    script = (
        "import resource, signal, runpy, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "sys.argv = ['train', *sys.argv[1:]]\n"
        "runpy.run_module('experiments.train', run_name='__main__')\n"
    )
    flags = [
        "--config", "configs/audio_synthetic.py", "--workdir", str(tmp_path / "run"),
        "--config.model.width=64", "--config.num_steps=6", "--config.save_every=3",
        "--config.optim.warmup_steps=2", "--config.probe.tasks=()",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, *flags],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **ONE_DEVICE, "CPC_DATA": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("error: ")
    assert "checkpoint" in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys; sys.exit(5)", "it ends the program (exit 5)"),
        ("def get_config():\n    raise KeyError('widht\\n did you mean \\'width\\'?')", "KeyError"),
    ],
)
def test_a_config_file_that_ends_or_fails_is_one_sentence(tmp_path, text, words):
    (tmp_path / "config.py").write_text(text)
    flags = ("--config", tmp_path / "config.py", "--workdir", tmp_path / "run")
    said = commands.run("experiments.train", *flags, status=2).stderr
    assert said.startswith("error: cannot read the config")
    assert words in said
    assert said.count("\n") == 1
    assert "\\" not in said


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--workdir=~nouser/x", "--config.data.path=~nouser/x"])
def test_a_home_of_nobody_is_one_sentence(tmp_path, flag):
    flags = ("--config", "configs/audio_synthetic.py", "--workdir", tmp_path / "run", flag)
    said = commands.run("experiments.train", *flags, status=2).stderr
    name = flag.removeprefix("--").partition("=")[0]
    assert said == (
        f"error: {name} is '~nouser/x', and there is no such user here: write the whole path\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--xla_nope=3", "(Unknown flag in XLA_FLAGS: --xla_nope=3)"),
        ("--xla_cpu_enable_fast_math=maybe", "(Couldn't interpret value maybe for flag"),
    ],
)
def test_xla_flags_that_end_the_process_are_one_sentence(tmp_path, flags, words):
    how = {**commands.ONE_DEVICE, "XLA_FLAGS": flags}
    command = "--config", "configs/audio_synthetic.py", "--workdir", tmp_path / "run"
    said = commands.run("experiments.train", *command, how=how, status=2).stderr
    assert said.startswith(f"error: XLA cannot read the environment's XLA_FLAGS {words}")
    assert said.count("\n") == 1


def test_an_interrupt_that_a_callback_swallows_comes_again():
    said = []

    def swallow():
        cli.interrupt_again(types.SimpleNamespace(exc_type=KeyboardInterrupt), said.append)
        time.sleep(10)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's &
    try:
        with pytest.raises(KeyboardInterrupt):
            swallow()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not said
    other = types.SimpleNamespace(exc_type=ValueError)
    cli.interrupt_again(other, said.append)
    assert said == [other]


def test_an_interrupt_that_a_library_turns_into_its_own_error_is_one_sentence():
    code = """
import signal, sys
from experiments.command import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's &

def main():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("Invalid bounding box") from None

sys.argv = ["main"]
cli.run(main, shared=())
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_an_interrupt_while_imports_run_is_one_sentence():
    code = "import sys; sys.argv[0] = '-m'; import experiments; raise KeyboardInterrupt"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "error: interrupted\n")
