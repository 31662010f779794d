"""Pushing runs to a hub and pulling them, with folders as the hub."""

import pathlib
import shutil
import types
from unittest import mock

import huggingface_hub
import jax.numpy as jnp
import pytest
from huggingface_hub.utils import filter_repo_objects

from cpc.train import TensorBoardWriter, open_checkpoints
from cpc.types import UserError
from experiments import hub
from tests.fake_run import write_fake_run


class Folder:
    """Repositories as folders, with the interface of huggingface_hub."""

    def __init__(self, root):
        self.root = root
        self.api = mock.create_autospec(huggingface_hub.HfApi, instance=True)
        for name in ("create_repo", "upload_folder", "upload_file", "list_repo_files"):
            getattr(self.api, name).side_effect = getattr(self, name)
        self.api.model_info.side_effect = lambda name: types.SimpleNamespace(sha="abc")
        self.api.snapshot_download.side_effect = self.snapshot_download

    def create_repo(self, name, private, exist_ok):
        self.private = private
        (self.root / name).mkdir(parents=True, exist_ok=exist_ok)
        (self.root / name / ".gitattributes").write_text("*.npz filter=lfs")
        return f"https://hub/{name}"

    def upload_folder(self, repo_id, folder_path, ignore_patterns, delete_patterns, commit_message):
        for path in files_of(self.root / repo_id):
            if path != ".gitattributes" and delete_patterns == ["*"]:
                (self.root / repo_id / path).unlink()
        found = filter_repo_objects(files_of(folder_path), ignore_patterns=ignore_patterns)
        for path in found:
            self.upload_file(repo_id, folder_path / path, path)

    def upload_file(self, repo_id, path_or_fileobj, path_in_repo):
        to = self.root / repo_id / path_in_repo
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path_or_fileobj, to)

    def list_repo_files(self, name, revision):
        assert revision == "abc"
        return files_of(self.root / name)

    def snapshot_download(self, name, revision, local_dir, allow_patterns, ignore_patterns):
        assert revision == "abc"
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        for path in filter_repo_objects(files_of(self.root / name), **patterns):
            to = pathlib.Path(local_dir) / path
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / name / path, to)
        notes = pathlib.Path(local_dir) / ".cache" / "huggingface"
        notes.mkdir(parents=True)
        (notes / "x.metadata").write_text("")


def files_of(folder):
    folder = pathlib.Path(folder)
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def paths_to_pull(paths):
    patterns = {"allow_patterns": hub.PULLED, "ignore_patterns": hub.NOT_PULLED}
    return list(filter_repo_objects(paths, **patterns))


@pytest.fixture
def remote(tmp_path):
    return Folder(tmp_path / "hub")


@pytest.fixture
def run(tmp_path):
    write_fake_run(tmp_path / "run")
    (tmp_path / "run" / "exported").mkdir(exist_ok=True)
    (tmp_path / "run" / "exported" / "README.md").write_text("a card")
    (tmp_path / "run" / "log.txt").write_text("said")
    return tmp_path / "run"


def test_pulled_run_equals_the_pushed_run(remote, run, tmp_path):
    (run / "old.json").write_text("{}")
    hub.push(remote.api, run, "team/voices", public=True)
    assert not remote.private
    (run / "old.json").unlink()
    assert hub.push(remote.api, run, "team/voices") == "https://hub/team/voices"
    assert remote.private
    there = remote.root / "team" / "voices"
    assert "old.json" not in files_of(there)
    assert (there / "README.md").read_text() == "a card"
    assert not {"run.lock", "log.txt", "state.json"} & set(files_of(there))
    assert hub.pull(remote.api, "team/voices", tmp_path / "a" / "back") == []
    back = tmp_path / "a" / "back"
    left = {*files_of(run)} - {*files_of(back)}
    assert left <= {"run.lock", "log.txt", "report.html", "state.json"}
    for path in files_of(back):
        assert (back / path).read_bytes() == (run / path).read_bytes()
    assert files_of(tmp_path / "a") == [f"back/{path}" for path in files_of(back)]


def test_links_and_foreign_folders_are_rejected(remote, run, tmp_path):
    (run / "secret").symlink_to("/etc")
    for folder, words in ((tmp_path / "hub", "holds no run"), (run, "secret is a link")):
        with pytest.raises(UserError, match=words):
            hub.push(remote.api, folder, "team/voices")
    assert not remote.api.upload_folder.called


def test_executable_files_are_not_pulled(remote, run, tmp_path):
    hub.push(remote.api, run, "team/voices")
    there = remote.root / "team" / "voices"
    names = [
        ".git/config", ".py", "Makefile", "b.PY", "c.svgz", "checkpoints/8/.git/config",
        "checkpoints/8/state/Makefile", "checkpoints/8/state/x.json", "exported/expert[1].py",
        "figures/.idea/x.png", "model.pkl", "package.json", "probes/sub/x.json", "report.html",
        "tensorboard/x.so",
    ]  # fmt: skip
    for name in names:
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("x")
    left_out = hub.pull(remote.api, "team/voices", tmp_path / "back")
    assert left_out == sorted(names)
    assert not set(left_out) & set(files_of(tmp_path / "back"))


def test_all_files_of_a_run_are_pulled(tmp_path):
    with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
        for step, metric in ((3, None), (4, None), (4, 0.5)):  # evaluated after it was saved
            checkpoints.save(step, {"w": jnp.ones(2)}, {}, metric)
    writer = TensorBoardWriter(tmp_path / "tensorboard")
    writer.write({"step": 1, "loss": 1.0})
    writer.close()
    paths = files_of(tmp_path)
    assert len(paths) > 10
    paths += [path.replace("process_0", "process_11") for path in paths]  # files of other processes
    assert paths_to_pull(paths) == paths


def test_escaping_and_hidden_paths_are_not_pulled():
    paths = ["../config.json", "/etc/config.json", "probes//etc/x.json", "probes/a\\..\\x.json",
             "figures/.x/y.png", "tensorboard/../events.out.tfevents.1"]  # fmt: skip
    assert paths_to_pull(["config.json", *paths]) == ["config.json"]


def test_repository_without_a_run_is_rejected(remote, run, tmp_path):
    hub.push(remote.api, run, "team/voices")
    (remote.root / "team" / "voices" / "config.json").unlink()
    for to, words in ((tmp_path / "back", r"has no config\.json"), (run, "already exists")):
        with pytest.raises(UserError, match=words):
            hub.pull(remote.api, "team/voices", to)


def test_interrupted_pull_leaves_nothing(remote, run, tmp_path):
    hub.push(remote.api, run, "team/voices")

    def break_off(name, local_dir, **options):
        remote.snapshot_download(name, local_dir=local_dir, **options)
        raise OSError("Consistency check failed")

    remote.api.snapshot_download.side_effect = break_off
    with pytest.raises(OSError, match="Consistency"):
        hub.pull(remote.api, "team/voices", tmp_path / "to" / "back")
    assert files_of(tmp_path / "to") == []


def test_hub_errors_are_reported(monkeypatch):
    from huggingface_hub import errors

    for error in (errors.LocalTokenNotFoundError("A word\n"), errors.HFValidationError("A word")):
        with pytest.raises(UserError, match="A word"), hub.connect():
            raise error
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'cpc-jax\[hub\]'"), hub.connect():
        pass
