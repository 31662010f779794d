"""Names of configs and commands in a checkout and in an installation."""

import pathlib
import shlex
import sys

import pytest

from cpc.types import UserError
from experiments.command import names
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
VOICES = ROOT / "configs" / "audio_voices.py"


@pytest.mark.parametrize("folder", [".", "configs", "docs"])
def test_config_names_work_in_any_folder(monkeypatch, folder):
    monkeypatch.chdir(ROOT / folder)
    found = names.find_configs(["--config", "audio_voices", "--config=audio_voices:large", "x"])
    assert pathlib.Path(found[1]).resolve() == VOICES
    assert found == ["--config", found[1], f"--config={found[1]}:large", "x"]
    assert found[1] == {".": "configs/audio_voices.py", "configs": "audio_voices.py"}.get(
        folder, str(VOICES)
    )


def test_config_paths_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("audio_voices.py", "image"):
        (tmp_path / name).write_text("")
    given = [
        "--config=audio_voices.py", "--config", "./audio_voices.py", "--config", "image",
        "--config=other/thing.py:small", "--config", f"{VOICES}", "--workdir", "audio_voices",
        "--config.data.path=audio_voices", "audio_voices",
    ]  # fmt: skip
    assert names.find_configs(given) == given


@pytest.mark.parametrize(("given", "sentence"), [
    ("audio_voice", "'audio_voice'.*audio_voices"), ("qqq", "'qqq'.*arrays, audio, "),
    ("nowhere/audio_voices.py", "nowhere/audio_voices.py.*--config audio_voices"),
])  # fmt: skip
def test_unknown_config_name_is_reported(given, sentence):
    with pytest.raises(UserError, match=sentence):
        names.find_configs(["--config", given])


def test_commands_are_named_as_started(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["x", "--config=configs/audio_voices.py:a", "--workdir", "r"])
    first, *_, last, _, _ = shlex.split(names.command_line())
    assert (first, last) == (names.near(sys.executable), "--config=audio_voices:a")
    monkeypatch.setattr(sys.modules["__main__"], "STARTED_AS", ("cpc", "train"), raising=False)
    assert names.command_line() == "cpc train --config=audio_voices:a --workdir r"
    assert names.call("train") == [names.near(sys.executable), "-m", "cpc", "train"]
    monkeypatch.setattr(sys, "argv", ["x", "--config", "own.py", "--config.data.path", "a=b.py"])
    assert names.command_line() == "cpc train --config own.py --config.data.path a=b.py"


def test_information_command_errors_show_its_flags():
    done = commands.run("cpc", "information", "a.npy", "b.npy", status=2)
    assert {"--x", "--y"} <= {*done.stderr.replace(";", " ").replace(":", " ").split()}
