"""Lists of configs and keys: complete, by section, and with the ranges that are checked."""

import sys

import pytest

from configs import audio, text
from cpc.files import flatten
from cpc.types import UserError
from experiments.command import keys
from experiments.kinds.registry import KINDS

KEYS = {name: kind.KEYS for name, kind in KINDS.items()}


def test_every_key_has_its_default_range_and_meaning():
    for known in (audio.KEYS, text.KEYS):
        listed = keys.list_keys(known)
        assert all(f"{name} = " in listed for name in flatten(known))
    section = keys.list_keys(audio.KEYS, "optim")
    assert "optim.learning_rate = 0.002   (above 0)" in section
    assert "data.batch_size" not in section
    assert keys.list_keys(audio.KEYS, "optim.clip_norm").startswith("optim.clip_norm = 0.0")
    with pytest.raises(UserError, match="choose one of data, augment, model"):
        keys.list_keys(audio.KEYS, "optm")
    kinds = keys.list_kinds(KEYS, "augment")
    assert "image:\naugment.crop = 0" in kinds
    assert "words:" not in kinds
    with pytest.raises(UserError, match="no section 'optm'"):
        keys.list_kinds(KEYS, "optm")


@pytest.mark.parametrize(("words", "section", "left"), [
    (["--keys", "optim"], "optim", []), (["--keys=optim", "x"], "optim", ["x"]),
    (["--keys", "--config=audio"], "", ["--config=audio"]),
    (["--config=audio"], None, ["--config=audio"]),
])  # fmt: skip
def test_a_section_is_taken_from_the_command_line(monkeypatch, words, section, left):
    monkeypatch.setattr(keys.flags, "DEFINE_string", lambda *rest: None)
    monkeypatch.setattr(sys, "argv", ["cpc", *words])
    assert (keys.take_section(), sys.argv[1:]) == (section, left)


def test_configs_have_a_first_line_and_pages_list_all(tmp_path):
    found = dict(keys.find_configs())
    assert {"audio_voices", "text_words", "rl_t_maze"} <= found.keys()
    assert "keys" not in found
    assert all(found.values())
    keys.write_pages(str(tmp_path), KEYS)
    text_of_configs, text_of_keys = (
        (tmp_path / f"{n}.md").read_text() for n in ("configs", "keys")
    )
    assert all(f"`{name}`" in text_of_configs for name in found)
    assert all(f"`{name}`" in text_of_keys for name in flatten(audio.KEYS))
