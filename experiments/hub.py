"""A run on the Hugging Face hub: pushed for a team, pulled to be read, probed or resumed.

    cpc hub push runs/voices team/voices
    cpc hub pull team/voices runs/theirs

A new repository is private; --public makes it everybody's. All of a run goes there but its lock and
logs: also environment.json, which names the host and the command. The same push again makes the
repository equal to the run. `hf auth login` once, or HF_TOKEN, says who you are.

What comes back is data, and read as such: nothing of it is executed, only files of the names that a
run directory has are fetched, as other programs may execute others, and the page is made again.
"""

import contextlib
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import flags

from cpc.results import read_run
from cpc.types import UserError
from experiments.command import cli, lock
from experiments.kinds.registry import read_contrastive
from experiments.training.contrastive import write_page
from experiments.training.model_card import CARD

#: What stays here: who works in the directory, and what was printed.
NOT_PUSHED = [lock.LOCK, "log*.txt", "state.json", "*.part", ".cache/*"]
#: What a run directory contains, as a pattern of paths.
PULLED = re.compile(
    r"(config|environment|scores|audit|data|truth|checkpoint|neighbours|map|table|nce|negatives"
    r"|from_ngram_to_infonce)\.json|metrics\.(jsonl|crc32)|(scores|episode|vectors|units)\.npz"
    r"|skipped\.txt|vectors\.txt|vocabulary\.tsv|exported/(config\.json|model\.safetensors|README\.md)"
    r"|tensorboard/events\.out\.tfevents[^/]*\.\d+|augmentation/[^/]+\.wav|figures/[^/]+\.png"
    r"|probes/[^/]+\.(json|npz|npy|item)|checkpoints/(owed-evaluation|\d+/_CHECKPOINT_METADATA)"
    r"|checkpoints/\d+/(state|meta|metrics)/([\w.]+/)*(_\w+|metadata|metrics|process_\d+|[0-9a-f]{32}"
    r"|manifest\.ocdbt)|checkpoints/\d+/(\w+/)?commit_success\.txt"
)

#: What a repository has beside the run: the hub's own, and the model card that heads its page.
NOT_OF_THE_RUN = [".gitattributes", CARD]


def push(api: Any, workdir: pathlib.Path, name: str, public: bool = False) -> str:
    """Make a repository equal to a run, and return its address.

    Args:
        api: a `huggingface_hub.HfApi`.
        workdir: the run.
        name: owner/name of the repository.
        public: whether everybody may read it, if it is a new one.

    Raises:
        UserError: no run is there, a command works in it, or it has links to elsewhere.
    """
    step = read_run(workdir).step
    for path in workdir.rglob("*"):
        if path.is_symlink():
            raise UserError(f"{path} is a link, perhaps to what is not to be shared: take it out")
    with lock.hold(workdir):
        url = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=workdir,
            ignore_patterns=NOT_PUSHED,
            delete_patterns=["*"],  # what another push left there and is no more here
            commit_message=f"Step {step}",
        )
        card = workdir / "exported" / CARD
        if card.exists():
            api.upload_file(repo_id=name, path_or_fileobj=card, path_in_repo=CARD)
    return str(url)


def pull(api: Any, name: str, workdir: pathlib.Path) -> list[str]:
    """Make a run directory of what a repository holds, and return what was left out.

    It appears whole or not at all.

    Raises:
        UserError: something is there already, what comes has no run in it or a path that leads out
            of it, or is more than the disk has room for.
    """
    if workdir.exists():
        raise UserError(f"{workdir} is there already: choose another directory for the run")
    revision = api.model_info(name).sha  # what is checked is what is fetched
    tree = api.list_repo_tree(name, recursive=True, revision=revision)
    sizes = {entry.path: entry.size for entry in tree if hasattr(entry, "size")}
    for path in NOT_OF_THE_RUN:
        sizes.pop(path, None)
    check_paths(name, sizes)
    wanted = {path for path in sizes if is_data(path)}
    for path in sorted(wanted):
        if not isinstance(sizes[path], int) or sizes[path] < 0:
            raise UserError(f"{name} lists {path!r} without a size: do not use it")
    workdir.parent.mkdir(parents=True, exist_ok=True)
    room, size = shutil.disk_usage(workdir.parent).free, sum(sizes[path] for path in wanted)
    if size > room:
        raise UserError(f"{name} is {size:,} bytes, and {workdir.parent} has room for {room:,}")
    with tempfile.TemporaryDirectory(dir=workdir.parent, prefix=".pull-") as part:
        folder = pathlib.Path(part, "run")
        left_out = [*NOT_OF_THE_RUN, *escape(set(sizes) - wanted)]
        api.snapshot_download(name, revision=revision, local_dir=folder, ignore_patterns=left_out)
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's own notes
        for path in folder.rglob("*"):
            inside = path.relative_to(folder).as_posix()
            if path.is_symlink() or (path.is_file() and path.stat().st_size != sizes.get(inside)):
                raise UserError(f"{name} sent {inside!r} other than it says: pull again")
        read_run(folder)
        folder.rename(workdir)
    return sorted(set(sizes) - wanted)


def is_data(path: str) -> bool:
    """Return whether a path is one of a run directory; what is hidden never is.

    >>> [is_data(path) for path in ("scores.json", "package.json", "probes/.git/config.json")]
    [True, False, False]
    """
    is_hidden = any(part.startswith(".") for part in path.split("/"))
    return not is_hidden and PULLED.fullmatch(path) is not None


def check_paths(name: str, paths: Iterable[str]) -> None:
    """Check that what a repository calls its files names nothing outside of a folder.

    Raises:
        UserError: one does, or there is no config.json among them.
    """
    for path in paths:
        parts = path.split("/")
        if {"", ".", ".."} & set(parts) or not path.isprintable() or set(path) & set('\\:*?"<>|'):
            raise UserError(f"{name} has a file {path!r}, which is no path of a run: do not use it")
    if "config.json" not in paths:
        raise UserError(f"{name} holds no run: it has no config.json")


def escape(paths: Iterable[str]) -> list[str]:
    """Return patterns of `fnmatch` that match these paths alone.

    >>> escape(["a[1].py"])
    ['a[[]1].py']
    """
    return sorted(path.replace("[", "[[]") for path in paths)


@contextlib.contextmanager
def connect() -> Iterator[Any]:
    """Yield the hub's interface; what goes wrong with it is said in a sentence.

    Raises:
        UserError: the library is missing, or the hub refuses.
    """
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        from huggingface_hub import errors  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("the hub needs huggingface_hub: pip install 'cpc-jax[hub]'") from None
    try:
        yield huggingface_hub.HfApi()
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError) as error:
        said = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the hub refuses ({said}): is the name right, and hf auth login done?"
        ) from (error)
    except errors.HFValidationError as error:
        raise UserError(f"{error}: a repository is called owner/name") from error


def main(words: Sequence[str]) -> None:
    """Push or pull, and say where the run is."""
    match words:
        case ["push", workdir, name]:
            with connect() as api:
                print(
                    f"pushed: {push(api, pathlib.Path(workdir).expanduser(), name, PUBLIC.value)}"
                )
        case ["pull", name, to]:
            workdir = pathlib.Path(to).expanduser()
            with connect() as api:
                left_out = pull(api, name, workdir)
            if left_out:
                print(f"left out, as no part of a run: {', '.join(left_out)}")
            print(f"pulled: {workdir}, step {read_run(workdir).step}")
            with contextlib.suppress(UserError):  # of a kind whose page its own command writes
                print(f"report: {write_page(read_contrastive(workdir)[0], workdir)}")
        case _:
            raise UserError("give push RUN owner/name, or pull owner/name RUN; see --help")


if __name__ == "__main__":
    PUBLIC = flags.DEFINE_bool("public", False, "push: everybody may read a new repository.")
    cli.run(main, takes_folders=True, shared=())
