import re
import shutil
import subprocess
import sys
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cpc import train
from cpc.types import UserError


class Pair(NamedTuple):
    keys: jax.Array
    places: tuple[jax.Array, ...]


def make_state(value=1.0, width=64):
    params = {"encoder": {"kernel": jnp.full((4, width), value), "bias": jnp.arange(3.0) * value}}
    pair = Pair(jnp.arange(4.0), tuple(jnp.full(2, i) for i in range(11)))  # "10" sorts before "2"
    extra = {"mean": jnp.ones(2), "objective": {"queue": pair, "list": [jnp.ones(1)]}}
    return train.init_state(params, extra, optax.adam(0.1), jax.random.key(3), {}, ema=True)


def save_all(directory, values, metrics=None, width=64):
    with train.open_checkpoints(directory) as checkpoint:
        for step, value in enumerate(values, 1):
            metric = metrics[step - 1] if metrics else None
            checkpoint.save(step, make_state(value, width), {"value": value}, metric)


def restore(directory, target=None):
    said = []
    with train.open_checkpoints(directory, log=said.append) as checkpoint:
        restored = checkpoint.restore(make_state() if target is None else target)
        return restored, said, checkpoint.latest_step


def steps_on_disk(directory):
    return sorted(int(item.name) for item in directory.iterdir() if item.name.isdecimal())


def largest_file(directory):
    return max((p for p in directory.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip_a_bit(directory):
    path = largest_file(directory / "state")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(directory):
    path = largest_file(directory / "state")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_name_in_metadata(directory):
    path = directory / "meta" / "metadata"
    path.write_text(path.read_text().replace("encoder", "encodes", 1))


def test_state_round_trip(tmp_path):
    save_all(tmp_path, [2.5])
    mesh = train.make_mesh(8)
    (state, metadata), said, _ = restore(tmp_path, train.replicate(make_state(), mesh))
    expected = make_state(2.5)
    assert (metadata, said) == ({"value": 2.5}, [])
    assert state.rng.dtype == expected.rng.dtype
    assert jax.random.normal(state.rng) == jax.random.normal(expected.rng)
    jax.tree.map(np.testing.assert_array_equal, state.params, expected.params)
    assert state.params["encoder"]["kernel"].sharding == train.replicated(mesh)
    assert jax.tree.structure(state) == jax.tree.structure(expected)


@pytest.mark.parametrize(("metrics", "kept"), [
    ([3.0, 1.0, 9.0, 5.0, 4.0], [2, 4, 5]), (None, [4, 5]),
    ([float("nan"), 7.0, 8.0, 9.0], [2, 3, 4]),
])  # fmt: skip
def test_newest_two_and_best_are_kept(tmp_path, metrics, kept):
    save_all(tmp_path, [1.0] * (len(metrics) if metrics else 5), metrics)
    assert steps_on_disk(tmp_path) == kept


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    save_all(folder, [1.0, 2.0, 3.0])
    return folder


@pytest.mark.parametrize("harm", [
    truncate, flip_name_in_metadata, lambda folder: (folder / "state" / "manifest.ocdbt").unlink(),
])  # fmt: skip
def test_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path, saved, harm):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    harm(tmp_path / "3")
    (state, metadata), said, latest = restore(tmp_path)
    assert metadata == {"value": 2.0}
    assert float(state.params["encoder"]["bias"][1]) == 2.0
    assert len(said) == 1
    assert f"{tmp_path / '3'} is damaged" in said[0]
    assert "\n" not in said[0]
    assert latest == 2  # so step 3 can be saved again
    with train.open_checkpoints(tmp_path) as checkpoint:
        checkpoint.save(3, make_state(3.5), {"value": 3.5})
    assert restore(tmp_path)[0][1] == {"value": 3.5}


def test_flipped_bit_is_found_by_checksum(tmp_path):
    noise = {"kernel": jax.random.normal(jax.random.key(0), (512, 128))}  # does not compress
    with train.open_checkpoints(tmp_path) as checkpoint:
        checkpoint.save(1, noise, {})
        checkpoint.save(2, noise, {})
    flip_a_bit(tmp_path / "2")
    _, said, latest = restore(tmp_path, noise)
    assert "the checksum of kernel is wrong" in said[0]
    assert latest == 1


def test_foreign_and_partial_directories_are_ignored(tmp_path, saved):
    assert restore(tmp_path / "new")[0] is None
    assert train.read_metadata(tmp_path / "new") == {}
    folder = shutil.copytree(saved, tmp_path / "copy")
    (folder / "77").mkdir()
    (folder / "4.orbax-checkpoint-tmp").mkdir()
    (folder / "notes").mkdir()
    (_, metadata), said, latest = restore(folder)
    assert (metadata["value"], latest, len(said)) == (3.0, 3, 1)
    assert str(folder / "77") in said[0]
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)
    assert train.read_metadata(folder) == {3: {"value": 3.0}, 2: {"value": 2.0}}
    (folder / "3" / "meta" / "metadata").write_bytes(b"")
    assert train.read_metadata(folder) == {2: {"value": 2.0}}
    for step in (2, 3):
        truncate(folder / str(step))
    with pytest.raises(UserError, match=r"damaged \(steps \[2, 3\]\)"):
        restore(folder)
    assert steps_on_disk(folder) == [2, 3]
    for empty in (folder, tmp_path / "new"):  # without a metric
        with pytest.raises(UserError, match=re.escape(str(empty))):
            train.restore_params(empty, "best")


def test_different_shape_is_reported_as_such(tmp_path):
    save_all(tmp_path, [1.0])
    with pytest.raises(UserError, match=r"ema/encoder/kernel is \[\[4, 64\], 'float32'\] there"):
        restore(tmp_path, make_state(width=65))
    with pytest.raises(UserError, match=r"extra/mean is .* there and absent here"):
        restore(tmp_path, make_state()._replace(extra={}))
    assert steps_on_disk(tmp_path) == [1]


def test_restore_params_of_any_step(tmp_path, saved):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    trees, metadata, step = train.restore_params(tmp_path)
    assert (step, metadata, sorted(trees)) == (3, {"value": 3.0}, ["ema", "extra", "params"])
    assert isinstance(trees["params"]["encoder"]["kernel"], np.ndarray)
    np.testing.assert_array_equal(trees["params"]["encoder"]["kernel"], np.full((4, 64), 3.0))
    np.testing.assert_array_equal(trees["extra"]["mean"], [1, 1])
    queue = trees["extra"]["objective"]["queue"]
    np.testing.assert_array_equal(queue["keys"], np.arange(4.0))
    assert [place.tolist() for place in queue["places"]] == [[i, i] for i in range(11)]
    assert train.restore_params(tmp_path, 2)[1] == {"value": 2.0}
    with pytest.raises(UserError, match=r"step 9: .*\[2, 3\]"):
        train.restore_params(tmp_path, 9)
    flip_a_bit(tmp_path / "3")
    said = []
    trees, metadata, step = train.restore_params(tmp_path, log=said.append)
    assert (step, metadata) == (2, {"value": 2.0})
    np.testing.assert_array_equal(trees["params"]["encoder"]["kernel"], np.full((4, 64), 2.0))
    (sentence,) = said
    assert re.search(r"/3 is damaged ", sentence)
    with pytest.raises(UserError, match=r"/3 is damaged .*\[2, 3\]"):
        train.restore_params(tmp_path, 3)  # never falls back
    flip_a_bit(tmp_path / "2")
    with pytest.raises(UserError, match=r"damaged \(steps \[2, 3\]\)"):
        train.restore_params(tmp_path, log=said.append)


def test_best_checkpoint_is_restored_by_name(tmp_path):
    save_all(tmp_path, [1.0, 2.0, 3.0, 4.0], [5.0, 2.0, 9.0, 7.0])
    assert steps_on_disk(tmp_path) == [2, 3, 4]
    assert train.best_step(tmp_path) == 2
    trees, metadata, step = train.restore_params(tmp_path, "best")
    assert (step, metadata) == (2, {"value": 2.0})
    np.testing.assert_array_equal(trees["params"]["encoder"]["kernel"], np.full((4, 64), 2.0))
    flip_a_bit(tmp_path / "2")
    with pytest.raises(UserError, match=r"\[2, 3, 4\]"):  # never falls back
        train.restore_params(tmp_path, "best")
    (path,) = (tmp_path / "2" / "meta").glob("metadata")  # metrics are sealed
    path.write_text(path.read_text().replace('"metric": 2.0', '"metric": 8.5'))
    assert train.best_step(tmp_path) == 4


@pytest.mark.parametrize("text", [b'{"metric": 0.1}', b"\xff"])
def test_damaged_metric_keeps_the_checkpoint(tmp_path, text):
    save_all(tmp_path, [1.0, 2.0], [0.5, None])
    (tmp_path / "2" / "late-metric.json").write_bytes(text)
    (state, _), said, latest = restore(tmp_path)
    np.testing.assert_array_equal(state.params["encoder"]["kernel"], np.full((4, 64), 2.0))
    assert (said, latest, train.best_step(tmp_path)) == ([], 2, 1)
    with train.open_checkpoints(tmp_path) as checkpoint:  # saving continues
        for step in (3, 4):
            checkpoint.save(step, make_state(), {}, 9.0)
    assert steps_on_disk(tmp_path) == [1, 3, 4]


def test_late_metric_of_a_pending_evaluation_is_kept(tmp_path):
    """Saving an existing or older step changes nothing else."""
    save_all(tmp_path, [1.0, 2.0, 3.0, 4.0], [5.0, 7.0, 9.0, None])
    assert steps_on_disk(tmp_path) == [1, 3, 4]
    with train.open_checkpoints(tmp_path) as checkpoint:
        checkpoint.save(3, make_state(), {}, 0.1)  # only the latest step may get one
        checkpoint.save(4, make_state(), {}, float("nan"))
        checkpoint.save(4, make_state(), {}, 2.0)
        checkpoint.save(4, make_state(), {}, 9.0)  # already set
        checkpoint.save(2, make_state(), {})
    assert steps_on_disk(tmp_path) == [3, 4]
    assert restore(tmp_path)[0][1] == {"value": 4.0}
    assert train.best_step(tmp_path) == 4
    with train.open_checkpoints(tmp_path) as checkpoint:
        for step in (5, 6, 7):
            checkpoint.save(step, make_state(), {}, 8.0)
    assert steps_on_disk(tmp_path) == [4, 6, 7]
    path = tmp_path / "4" / "late-metric.json"
    path.write_text(path.read_text().replace("2.0", "9.0"))
    assert train.best_step(tmp_path) == 7  # its seal is broken


def test_saved_state_may_be_donated_immediately(tmp_path):
    state = make_state(5.0, width=4096)
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0, tree), donate_argnums=0)
    with train.open_checkpoints(tmp_path) as checkpoint:
        checkpoint.save(1, state, {})
        overwrite(state.params)
    kernel = train.restore_params(tmp_path)[0]["params"]["encoder"]["kernel"]
    np.testing.assert_array_equal(kernel, np.full((4, 4096), 5.0))


#: Save a state that fits on the disk and one that does not, or records until it is full.
FILLS = """
import resource, sys
import jax.numpy as jnp, numpy as np
from cpc import train
from cpc.types import UserError
folder, kind = sys.argv[1:]
target = getattr(train, kind)(folder if kind == "open_checkpoints" else folder + "/records")
limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, 2**30))
noise = np.random.default_rng(0).normal(size=(2, 512, 1024)).astype("f")
try:
    if kind == "open_checkpoints":
        with target as checkpoint:
            for step, size in (1, 2**30), (2, 200_000):
                limit(size)
                checkpoint.save(step, {"params": jnp.asarray(noise[step - 1])}, {"value": step})
                checkpoint.wait()
    limit(4096)
    for step in range(1000):
        target.write({"step": step, "loss": 0.5, "bound": [1.0] * 12})
except UserError as error:
    sys.stderr.write(f"error: {error}\\n")
    sys.exit(2)
"""


@pytest.mark.parametrize(("kind", "words"), [
    ("JsonlWriter", "writing to "), ("TensorBoardWriter", "writing to "),
    ("open_checkpoints", "the checkpoint of step 2"),
])  # fmt: skip
def test_full_disk_is_reported_in_one_line(tmp_path, kind, words):
    """A file size limit acts as a full disk. Neither threads nor Python's exit print more."""
    command = [sys.executable, "-c", FILLS, str(tmp_path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {words}")
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(tmp_path) in done.stderr
    if kind == "open_checkpoints":
        assert "resumes from step 1" in done.stderr
        with train.open_checkpoints(tmp_path) as checkpoint:  # the last checkpoint is kept
            assert checkpoint.restore({"params": jnp.zeros((512, 1024))})[1] == {"value": 1}


def test_error_at_the_start_of_a_save_is_reported(tmp_path, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    with train.open_checkpoints(tmp_path) as checkpoint:
        checkpoint.save(1, make_state(), {})
        checkpoint.wait()
        monkeypatch.setattr(checkpoint._manager, "save", full)
        with pytest.raises(UserError, match=r"of step 2 could not be .*No space left.*from step 1"):
            checkpoint.save(2, make_state(), {})
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/checkpoints cannot be created"):
        train.open_checkpoints(tmp_path / "file" / "checkpoints")
