"""A run directory is of one config, whatever happens to the file that says which."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import PIL.Image
import pytest

from configs import audio_synthetic, audio_voices
from configs import text as text_config
from configs.audio import KEYS
from cpc.data import Images
from cpc.data.sources.image_folder import read_image_folder
from cpc.data.walk import walk_files
from cpc.files import plain, read_json, write_sealed
from cpc.train import Stopped, init_state, make_mesh, open_checkpoints
from cpc.types import UserError
from experiments import status
from experiments.command.run_dir import check_same_data, open_run, write_skipped
from experiments.image.data import ImageData
from experiments.image.modality import IMAGE
from experiments.sweep.jobs import lock_folder


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
    users = "film.mkv.part", "downloads/film.part"
    for name in (old, deep, new, *users):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{")
        if name != new:
            os.utime(tmp_path / name, (0, 0))

    def left():
        return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.part")}

    with open_run(str(tmp_path), audio_synthetic.get_config(), KEYS, make_mesh(1)):
        assert left() == {old, deep, new, *users}, "it was no run, whose could they be?"
    with pytest.raises(UserError, match="another config"):
        open_again(tmp_path, audio_voices.get_config())
    assert left() == {old, deep, new, *users}
    open_again(tmp_path, audio_synthetic.get_config())
    assert left() == {new, *users}


def write_texts(folder):
    folder.mkdir()
    (folder / "one.txt").write_text("A dog ran. It saw a cat. The cat ran. A dog saw it.\n" * 9)


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_what_a_run_writes_among_the_data_is_no_data(tmp_path, kind):
    """It was read at the next start: the run could not go on, and others trained on its files."""
    write_texts(tmp_path / "texts")
    before = walk_files(tmp_path / "texts").files
    if kind == "run":
        place = begin_at = tmp_path / "texts" / "runs" / "first"
    else:
        place, begin_at = tmp_path / "texts" / "runs", tmp_path / "texts" / "runs" / "a=1"
        with lock_folder(place, "sweep"):
            (place / "log.txt").write_text("a cell is about to start")
    begin(begin_at)
    write_skipped(begin_at, [("one.wav", "it is empty")])
    assert list(begin_at.rglob("*.txt"))
    walk = walk_files(tmp_path / "texts")
    assert walk.files == before
    assert walk.passed_over == [(str(place), f"{place} is the directory of a run, and no data")]
    assert len(walk_files(place).files) > 1, "what is asked for by name is read"


def test_a_run_among_images_is_no_class(tmp_path):
    image = PIL.Image.new("L", (8, 8))
    for name in ("train/cat", "train/dog"):
        (tmp_path / name).mkdir(parents=True)
        image.save(tmp_path / name / "0.png")
    for name in ("first", "train/second"):
        begin(tmp_path / name)
        (tmp_path / name / "figures").mkdir()
        image.save(tmp_path / name / "figures" / "loss.png")
    images = read_image_folder(tmp_path, "train", log=lambda _: None)
    assert (images.class_names, len(images.labels)) == (("cat", "dog"), 2)


def test_a_run_in_the_folder_of_the_data_itself_is_refused(tmp_path):
    write_texts(tmp_path / "texts")
    config = text_config.get_config()
    config.data.source, config.data.path = "files", str(tmp_path / "texts")
    with (
        pytest.raises(
            UserError, match=r"is data\.path, and what a run writes would be read as data"
        ),
        open_run(str(tmp_path / "x" / ".." / "texts"), config, text_config.KEYS, make_mesh(1)),
    ):
        pass
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["one.txt"]


def test_images_of_the_same_classes_are_not_the_same_images(tmp_path):
    """As many of each in both splits, which change places; earlier versions recorded no pixels."""
    rng = np.random.default_rng(0)
    labels = np.arange(40, dtype=np.int32) % 4
    train, test = (
        Images(rng.integers(0, 256, (40, 6, 6, 1)).astype(np.uint8), labels, tuple("abcd"))
        for _ in range(2)
    )
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    for _ in range(2):
        check_same_data(tmp_path, ImageData(train, train, test), IMAGE.identify)
    with pytest.raises(UserError, match="test data may have been trained on"):
        check_same_data(tmp_path, ImageData(test, test, train), IMAGE.identify)
    recorded = read_json(tmp_path / "data.json")
    old = {part: {k: recorded[part][k] for k in ("number", "sha256")} for part in ("train", "test")}
    write_sealed(tmp_path / "data.json", old)
    check_same_data(tmp_path, ImageData(train, train, test), IMAGE.identify)


@pytest.mark.parametrize(
    ("error", "said"),
    [(UserError("no room;\nmake some"), "no room; make some"), (KeyError(), "KeyError")],
)
def test_a_run_that_ended_in_an_error_is_said_to_have_failed(tmp_path, error, said):
    config = audio_synthetic.get_config()
    with (
        pytest.raises(type(error)),
        open_run(str(tmp_path / "run"), config, KEYS, make_mesh(1)),
    ):
        raise error
    (row,) = status.read_all(tmp_path)
    assert (row.state, row.problem.split("; to try again: ")[0]) == ("failed", said)
    open_again(tmp_path / "run", config)
    (row,) = status.read_all(tmp_path)
    assert (row.state, row.problem) == ("stopped", "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped("stopped by SIGTERM")])
def test_a_run_that_was_stopped_has_not_failed(tmp_path, error):
    config = audio_synthetic.get_config()
    with (
        pytest.raises(type(error)),
        open_run(str(tmp_path / "run"), config, KEYS, make_mesh(1)),
    ):
        raise error
    assert [row.state for row in status.read_all(tmp_path)] == ["stopped"]
