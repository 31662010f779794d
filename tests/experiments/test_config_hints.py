"""What errors about keys, flags and runs suggest."""

import pytest

from configs import audio, image
from cpc.files import flatten, read_json
from cpc.types import UserError
from experiments.command.config import check_value, find_key, suggest_key
from experiments.kinds.registry import read_contrastive


@pytest.mark.parametrize(("name", "wanted"), [
    ("optim.lr", "optim.learning_rate"), ("optim.weight-decay", "optim.weight_decay"),
    ("epochs", "num_steps"), ("model.hidden", "model.context_width"), ("bs", "data.batch_size"),
    ("model.widht", "model.width"), ("num_ofsets", "model.num_offsets"),
    ("num_workers", "data.num_threads"), ("optm.learning_rate", "optim.learning_rate"),
    ("model.quux", ""),
])  # fmt: skip
def test_a_key_is_suggested_if_one_means_the_same(name, wanted):
    for keys in (audio.KEYS, image.KEYS):
        assert suggest_key(flatten(keys), name) == wanted
    with pytest.raises(UserError, match=wanted or "--keys"):
        find_key(flatten(audio.KEYS), name)


def test_ranges_are_given_once():
    key = flatten(audio.KEYS)["data.batch_size"]
    with pytest.raises(UserError, match=f"from 1 to {key.high}$"):
        check_value("data.batch_size", 0, key)


def test_a_run_that_does_not_exist_has_no_error_number(tmp_path):
    for read in (read_contrastive, lambda path: read_json(path / "config.json")):
        with pytest.raises(UserError, match=r"config\.json.* does not exist") as error:
            read(tmp_path / "nope")
        assert "Errno" not in str(error.value)
