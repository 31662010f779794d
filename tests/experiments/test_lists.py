"""Lists of configs and keys, and suggestions in errors."""

import sys

import pytest

from configs import audio
from cpc.files import flatten
from cpc.types import UserError
from experiments.command import keys
from experiments.command.config import find_key, suggest_key
from experiments.kinds.registry import KINDS, read_contrastive

KEYS = {name: kind.KEYS for name, kind in KINDS.items()}


def test_keys_are_listed_with_default_range_and_meaning():
    listed = keys.list_keys(audio.KEYS)
    assert all(f"{name} = " in listed for name in flatten(audio.KEYS))
    section = keys.list_keys(audio.KEYS, "optim")
    assert "optim.learning_rate = 0.002   (above 0)" in section
    assert "data.batch_size" not in section
    assert keys.list_keys(audio.KEYS, "optim.clip_norm").startswith("optim.clip_norm = 0.0")
    with pytest.raises(UserError, match="data, augment, model"):
        keys.list_keys(audio.KEYS, "optm")
    kinds = keys.list_kinds(KEYS, "augment")
    assert "image:\naugment.crop = 0" in kinds
    assert "words:" not in kinds
    with pytest.raises(UserError, match=r"--keys .*'optm'"):
        keys.list_kinds(KEYS, "optm")


@pytest.mark.parametrize(("words", "section", "left"), [
    (["--keys", "optim"], "optim", []), (["--keys=optim", "x"], "optim", ["x"]),
    (["--keys", "--a=b"], "", ["--a=b"]), (["--a=b"], None, ["--a=b"]),
])  # fmt: skip
def test_listing_of_one_section(monkeypatch, words, section, left):
    monkeypatch.setattr(keys.flags, "DEFINE_string", lambda *rest: None)
    monkeypatch.setattr(sys, "argv", ["cpc", *words])
    assert (keys.take_section(), sys.argv[1:]) == (section, left)


def test_all_configs_are_listed(tmp_path):
    found = dict(keys.find_configs())
    assert {"audio_voices", "text_words", "rl_t_maze"} <= found.keys()
    assert "keys" not in found
    assert all(found.values())
    keys.write_pages(str(tmp_path), KEYS)
    for page, listed in (("configs", found), ("keys", flatten(audio.KEYS))):
        written = (tmp_path / f"{page}.md").read_text()
        assert all(f"`{name}`" in written for name in listed)


@pytest.mark.parametrize(("name", "wanted"), [
    ("optim.lr", "optim.learning_rate"), ("optim.weight-decay", "optim.weight_decay"),
    ("epochs", "num_steps"), ("model.widht", "model.width"),
    ("optm.learning_rate", "optim.learning_rate"), ("model.quux", ""), ("num_step", "num_steps"),
    ("optim.clip", "optim.clip_norm"),
])  # fmt: skip
def test_similar_keys_are_suggested(name, wanted):
    assert suggest_key(flatten(audio.KEYS), name) == wanted
    with pytest.raises(UserError, match=wanted or "--keys"):
        find_key(flatten(audio.KEYS), name)


def test_missing_run_is_reported_without_errno(tmp_path):
    with pytest.raises(UserError, match=r"config\.json.* does not exist") as error:
        read_contrastive(tmp_path / "nope")
    assert "Errno" not in str(error.value)
