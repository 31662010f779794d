"""A run directory is of one config, whatever happens to the file that says which."""

import os

import jax
import jax.numpy as jnp
import optax
import pytest

from configs import audio_synthetic
from configs.audio import KEYS
from cpc.files import plain, read_json
from cpc.train import init_state, make_mesh, open_checkpoints
from cpc.types import UserError
from experiments.command.run_dir import open_run


def begin(folder, has_config=True):
    """A run that has begun, as training leaves it, without the training."""
    config = audio_synthetic.get_config()
    with (
        open_run(str(folder), config, KEYS, make_mesh(1)),
        open_checkpoints(folder / "checkpoints") as checkpoints,
    ):
        state = init_state({"w": jnp.ones(2)}, {}, optax.sgd(0.1), jax.random.key(0), {})
        checkpoints.save(3, state, {"config": plain(config)} if has_config else {})
    return config


def open_again(folder, config):
    with open_run(str(folder), config, KEYS, make_mesh(1)) as path:
        return path


@pytest.mark.parametrize("harm", ["gone", "empty", "flipped", "not UTF-8"])
def test_a_config_that_is_lost_is_taken_from_the_newest_checkpoint(tmp_path, harm):
    config, file = begin(tmp_path), tmp_path / "config.json"
    content = read_json(file)
    if harm == "gone":
        file.unlink()
    else:
        flipped = file.read_bytes().replace(b'"seed": 0', b'"seed": 1')
        file.write_bytes({"empty": b"", "flipped": flipped, "not UTF-8": b"\xff" + flipped}[harm])
    other = audio_synthetic.get_config()
    other.seed = 7
    with pytest.raises(UserError, match="seed is 0 there and 7 here"):
        open_again(tmp_path, other)
    open_again(tmp_path, config)
    assert read_json(file) == content


def test_checkpoints_of_an_unknown_config_are_not_resumed(tmp_path):
    config = begin(tmp_path, has_config=False)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json: it is gone, and there are checkpoints"):
        open_again(tmp_path, config)


def test_two_commands_do_not_share_a_run(tmp_path):
    config = audio_synthetic.get_config()
    with (
        open_run(str(tmp_path), config, KEYS, make_mesh(1)),
        pytest.raises(UserError, match="is in use by process"),
    ):
        open_again(tmp_path, config)


def test_a_start_removes_what_killed_processes_were_writing_and_no_others(tmp_path):
    old, deep, new = "scores.json.7.part", "probes/done.json.7.part", "scores.json.8.part"
    (tmp_path / "probes").mkdir()
    for name in (old, deep, new):
        (tmp_path / name).write_text("{")
    for name in (old, deep):
        os.utime(tmp_path / name, (0, 0))
    with open_run(str(tmp_path), audio_synthetic.get_config(), KEYS, make_mesh(1)):
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.part")}
    assert left == {new}
