"""Push a run to the Hugging Face hub, or pull one to read, probe or resume it.

    cpc hub push runs/voices team/voices
    cpc hub pull team/voices runs/theirs

A new repository is private unless --public is set. The whole run is pushed except its lock and
logs, including environment.json, which names the host and the command. Another push makes the
repository equal to the run. Log in once with `hf auth login`, or set HF_TOKEN.

A pulled run is read as data and never executed. Only files with the names of a run directory are
fetched, since other programs might execute other files, and the page is written locally.
"""

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import flags

from cpc.models.hub import connect
from cpc.results import read_run
from cpc.types import UserError
from experiments.command import cli, lock
from experiments.kinds.registry import read_contrastive
from experiments.training.contrastive import CARD, write_page

NOT_PUSHED = [lock.RUN_LOCK, "log*.txt", "state.json", "*.part", ".cache/*"]
#: Files of a run directory. Since * also matches /, each pattern fixes a name or suffix.
PULLED = [
    "metrics.jsonl", "skipped.txt", "vectors.txt", "vocabulary.tsv",
    *(f"{name}.json" for name in (
        "config", "environment", "scores", "audit", "data", "truth", "checkpoint", "neighbours",
        "map", "table", "start_from",
    )),
    *(f"{name}.npz" for name in ("scores", "episode", "vectors", "units")),
    *(f"exported/{name}" for name in ("config.json", "model.safetensors", CARD)),
    "tensorboard/events.out.tfevents.*[0-9]", "augmentation/*.wav", "figures/*.png",
    *(f"probes/*.{ending}" for ending in ("json", "npz", "npy", "item")),
    "checkpoints/owed-evaluation",
    *(f"checkpoints/*/{name}" for name in (
        "_CHECKPOINT_METADATA", "_METADATA", "_sharding", "metadata", "metrics", "manifest.ocdbt",
        "process_*[0-9]", "commit_success.txt", "late-metric.json", 32 * "[0-9a-f]",
    )),
]  # fmt: skip
#: Hidden files and "..", Windows drives, and subfolders that no run directory has.
NOT_PULLED = [
    ".*", "*/.*", "*:*",
    *(f"{folder}/*/*" for folder in ("augmentation", "exported", "figures", "probes")),
]  # fmt: skip


def push(api: Any, workdir: pathlib.Path, name: str, public: bool = False) -> str:
    """Upload a run, delete all other files of the repository, and return its address."""
    step = read_run(workdir).step
    for path in workdir.rglob("*"):
        if path.is_symlink():
            raise UserError(f"{path} is a link, perhaps to private files: remove the link")
    with lock.hold(workdir):
        url = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=workdir,
            ignore_patterns=NOT_PUSHED,
            delete_patterns=["*"],  # remove files of earlier pushes that no longer exist
            commit_message=f"Step {step}",
        )
        card = workdir / "exported" / CARD
        if card.exists():
            api.upload_file(repo_id=name, path_or_fileobj=card, path_in_repo=CARD)
    return str(url)


def pull(api: Any, name: str, workdir: pathlib.Path) -> list[str]:
    """Download a repository as a run directory, atomically, and return the files not fetched."""
    if workdir.exists():
        raise UserError(f"{workdir} already exists: choose another directory for the run")
    revision = api.model_info(name).sha
    listed = set(api.list_repo_files(name, revision=revision)) - {".gitattributes", CARD}
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workdir.parent, prefix=".pull-") as part:
        fetched = pathlib.Path(part, "run")
        api.snapshot_download(
            name,
            revision=revision,
            local_dir=fetched,
            allow_patterns=PULLED,
            ignore_patterns=NOT_PULLED,
        )
        shutil.rmtree(fetched / ".cache", ignore_errors=True)  # metadata of the library
        found = {path.relative_to(fetched).as_posix() for path in fetched.rglob("*")}
        if "config.json" not in found:
            raise UserError(
                f"{name} is not a run (it has no config.json): choose a repository with a run"
            )
        read_run(fetched)
        fetched.rename(workdir)
    return sorted(listed - found)


def main(words: Sequence[str]) -> None:
    """Push or pull a run, and print its address or directory."""
    match words:
        case ["push", workdir, name]:
            with connect() as api:
                url = push(api, pathlib.Path(workdir).expanduser(), name, PUBLIC.value)
            print(f"pushed: {url}")
        case ["pull", name, to]:
            workdir = pathlib.Path(to).expanduser()
            with connect() as api:
                left_out = pull(api, name, workdir)
            if left_out:
                print(f"not fetched, as not part of a run: {', '.join(map(repr, left_out))}")
            print(f"pulled: {workdir}, step {read_run(workdir).step}")
            with contextlib.suppress(UserError):  # only contrastive runs have this page
                print(f"report: {write_page(read_contrastive(workdir)[0], workdir)}")
        case _:
            raise UserError("cpc hub takes push RUN owner/name, or pull owner/name RUN; see --help")


if __name__ == "__main__":
    PUBLIC = flags.DEFINE_bool("public", False, "push: make a new repository public.")
    cli.run(main, takes_folders=True, shared=())
