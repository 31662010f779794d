"""Run directories: config, checkpoints, locks, partial files and data identity."""

import dataclasses
import os
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from configs import audio_synthetic, audio_voices
from configs import text as text_config
from cpc.data import Images, Recordings
from cpc.data.walk import walk_files
from cpc.files import read_json
from cpc.train import make_mesh, open_checkpoints
from cpc.types import UserError
from experiments.command import run_dir
from experiments.command.config import with_settings
from experiments.command.run_dir import Fingerprint, check_same_data, open_run, write_skipped
from experiments.kinds.audio.data import AudioData
from experiments.kinds.image.data import ImageData
from experiments.sweep.jobs import lock_folder
from tests.fake_run import write_records


def begin(folder, has_config=True, step=3, **settings):
    """Create a run directory as after `step` steps of training."""
    config = with_settings(audio_synthetic.get_config(), settings)
    with (
        open_run(str(folder), config, make_mesh(1)),
        open_checkpoints(folder / "checkpoints") as checkpoints,
    ):
        identity = run_dir.identify_run(folder, config)
        checkpoints.save(step, {"w": jnp.ones(2)}, identity if has_config else {})
        write_records(folder, [{"step": step, "split": "train"}], identity=identity)
    return config


def open_again(folder, config):
    with open_run(str(folder), config, make_mesh(1)) as path:
        return path


@pytest.mark.parametrize("harm", ["gone", "flipped", "not UTF-8"])
def test_lost_config_is_restored_from_the_newest_checkpoint(tmp_path, harm, monkeypatch):
    config, file = begin(tmp_path), tmp_path / "config.json"
    content = read_json(file)
    if harm == "gone":
        file.unlink()
    else:
        flipped = file.read_bytes().replace(b'"seed": 0', b'"seed": 1')
        file.write_bytes(flipped if harm == "flipped" else b"\xff" + flipped)
    with pytest.raises(UserError, match=r"seed.* 0 .* 7"):
        open_again(tmp_path, with_settings(config, {"seed": 7}))
    monkeypatch.setattr(run_dir, "describe_version", lambda: {"cpc": "9.9"})  # may resume
    open_again(tmp_path, config)
    assert read_json(file) == content
    begin(tmp_path / "unknown", has_config=False)
    (tmp_path / "unknown" / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json is missing"):
        open_again(tmp_path / "unknown", config)


@pytest.mark.parametrize("what", ["checkpoints/8", "metrics.jsonl"])
def test_files_of_another_run_are_rejected(tmp_path, what):
    config = begin(tmp_path / "mine")
    begin(tmp_path / "other", step=8, seed=1)
    copy = shutil.copytree if what == "checkpoints/8" else shutil.copy
    copy(tmp_path / "other" / what, tmp_path / "mine" / what)
    with pytest.raises(UserError, match=rf"{what} .*seed.* 1 .* 0.*move it out"):
        open_again(tmp_path / "mine", config)
    (tmp_path / "new").mkdir()  # also without a config.json
    shutil.copy(tmp_path / "other" / "metrics.jsonl", tmp_path / "new")
    with pytest.raises(UserError, match=r"metrics.jsonl .*seed.* 1 .* 0"):
        open_again(tmp_path / "new", config)


@pytest.mark.parametrize(("settings", "num_steps", "said"), [
    ({"optim.schedule": "constant"}, 3, None), ({"optim.schedule": "constant"}, 10**5, None),
    ({"optim.schedule": "constant"}, 2, "step 3, beyond num_steps 2"),
    ({"optim.schedule": "cosine"}, 10**5, "num_steps 100,000 .* cosine .*new --workdir"),
    ({"optim.schedule": "constant", "seed": 1}, 10**5, "seed.* 0 .* 1"),
])  # fmt: skip
def test_run_may_be_extended(tmp_path, settings, num_steps, said):
    begin(tmp_path, **{"optim.schedule": settings["optim.schedule"]})
    longer = with_settings(audio_synthetic.get_config(), {**settings, "num_steps": num_steps})
    if said is None:
        open_again(tmp_path, longer)
        assert read_json(tmp_path / "config.json")["num_steps"] == num_steps
        return
    with pytest.raises(UserError, match=said):
        open_again(tmp_path, longer)


def test_directory_without_steps_may_be_reused(tmp_path):
    config = audio_synthetic.get_config()
    other = with_settings(config, {"seed": 1, "model.width": 8})
    open_again(tmp_path, config)
    first = read_json(tmp_path / "environment.json")["id"]
    left = ("audit.json", "truth.json", "vocabulary.tsv", "augmentation/0_clean.wav",
            "probes/augmented.npz")  # fmt: skip
    for name in (*left, "data.json", "skipped.txt", "checkpoints/8.orbax-checkpoint-tmp/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    write_records(tmp_path, [], identity=run_dir.identify_run(tmp_path, config))
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(UserError, match="another config"):  # a file that no run writes
        open_again(tmp_path, other)
    (tmp_path / "notes.md").unlink()
    open_again(tmp_path, other)
    assert not [name for name in left if (tmp_path / name).exists()]
    assert read_json(tmp_path / "config.json")["seed"] == 1
    assert read_json(tmp_path / "environment.json")["id"] != first, "a new run has a new id"
    identity = run_dir.identify_run(tmp_path, other)
    write_records(tmp_path, [{"step": 1, "split": "train"}], identity=identity)
    with pytest.raises(UserError, match=r"seed.* 1 .* 0"):
        open_again(tmp_path, config)
    second = read_json(tmp_path / "environment.json")["id"]
    open_again(tmp_path, other)
    assert read_json(tmp_path / "environment.json")["id"] == second


def test_start_removes_only_its_own_stale_partial_files(tmp_path):
    old, deep, new = "scores.json.7.part", "probes/done.json.7.part", "scores.json.8.part"
    users = "film.mkv.part", "downloads/film.part"
    for name in (old, deep, new, *users):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{")
        if name != new:
            os.utime(tmp_path / name, (0, 0))

    def left():
        return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.part")}

    config = audio_synthetic.get_config()
    with open_run(str(tmp_path), config, make_mesh(1)):
        with pytest.raises(UserError, match="is in use by process"):
            open_again(tmp_path, config)
        assert left() == {old, deep, new, *users}, "the directory was not a run"
    with pytest.raises(UserError, match="another config"):
        open_again(tmp_path, audio_voices.get_config())
    assert left() == {old, deep, new, *users}
    open_again(tmp_path, audio_synthetic.get_config())
    assert left() == {new, *users}


def write_texts(folder):
    folder.mkdir()
    (folder / "one.txt").write_text("A dog ran. It saw a cat. The cat ran. A dog saw it.\n" * 9)


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_run_directory_within_the_data_is_skipped(tmp_path, kind):
    write_texts(tmp_path / "texts")
    before = walk_files(tmp_path / "texts").files
    if kind == "run":
        place = begin_at = tmp_path / "texts" / "runs" / "first"
    else:
        place, begin_at = tmp_path / "texts" / "runs", tmp_path / "texts" / "runs" / "a=1"
        with lock_folder(place, "sweep", lambda recorded: {}):
            (place / "log.txt").write_text("a cell is about to start")
    begin(begin_at)
    write_skipped(begin_at, [("one.wav", "it is empty")])
    assert list(begin_at.rglob("*.txt"))
    walk = walk_files(tmp_path / "texts")
    assert walk.files == before
    ((left, reason),) = walk.left_out
    assert left == str(place)
    assert str(place) in reason
    assert len(walk_files(place).files) > 1, "a folder named explicitly is read"


def test_run_in_the_data_folder_is_rejected(tmp_path):
    write_texts(tmp_path / "texts")
    config = text_config.get_config()
    config.data.source, config.data.path = "files", str(tmp_path / "texts")
    with (
        pytest.raises(UserError, match=r"texts is also data\.path"),
        open_run(str(tmp_path / "x" / ".." / "texts"), config, make_mesh(1)),
    ):
        pass
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["one.txt"]


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Record the data identity that processes exchange in a run with a checkpoint."""
    said = []
    monkeypatch.setattr(run_dir, "wait_for_all", lambda name, identity: said.append(identity))
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    return said


def test_data_identity_includes_lengths_and_loudness(tmp_path, said):
    """Node-local disks may differ; a resumed run may round differently when decoding."""
    for lengths, rms in (([7, 8], 0.2), ([7, 8], 0.2 + 1e-12), ([7, 9], 0.2), ([7, 8], 0.3)):
        part = Recordings(("a", "b"), ("s", "s"), np.array(lengths), lambda *_: np.zeros(0))
        part = dataclasses.replace(part, rms=np.array([0.1, rms]))
        check_same_data(tmp_path, AudioData(part, part, {}).fingerprint())
    assert said[0] == said[1]
    assert said[2] != said[0] != said[3]
    assert "exact" not in read_json(tmp_path / "data.json")["train"]


def test_data_identity_includes_image_content(tmp_path, said):
    rng = np.random.default_rng(0)
    labels = np.arange(40, dtype=np.int32) % 4
    train, test = (
        Images(rng.integers(0, 256, (40, 6, 6, 1)).astype(np.uint8), labels, tuple("abcd"))
        for _ in range(2)
    )
    for _ in range(2):
        check_same_data(tmp_path, ImageData(train, train, test).fingerprint())
    with pytest.raises(UserError, match="test data may have been trained on"):
        check_same_data(tmp_path, ImageData(test, test, train).fingerprint())
    assert said[0] == said[1]
    differing = {name for name in said[0] if said[0][name] != said[2][name]}
    assert differing == {"data.train.content", "data.test.content"}


def test_checkpoint_of_other_data_is_rejected(tmp_path):
    train, test = Fingerprint(2, b"a b"), Fingerprint(1, b"c")
    data, less = {"train": train, "test": test}, {"train": Fingerprint(1, b"a"), "test": test}
    check_same_data(tmp_path, data)
    begin(tmp_path)
    check_same_data(tmp_path, data)
    (tmp_path / "data.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints/3 started \(was 2 to train, .*is 1 to train"):
        check_same_data(tmp_path, less)
    check_same_data(tmp_path, data)
