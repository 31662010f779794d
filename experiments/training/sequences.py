"""Models, positions and file embedding shared by the kinds with latents in time."""

import contextlib
import csv
import functools
import pathlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc import models
from cpc.data.walk import DOCUMENTS, find_data, list_endings, printable, read_named, same_name
from cpc.evaluate import embed_utterances
from cpc.files import write_sealed
from cpc.types import Batch, SoundPosition, UserError
from experiments.command.config import Config

CONTEXTS = {
    "gru": models.GRU,
    "lstm": models.LSTM,
    "conv": models.CausalConv,
    "conv_undilated": functools.partial(models.CausalConv, dilated=False),
    "transformer": models.CausalTransformer,
    "ssm": models.StateSpace,
}


def make_cpc(options: Config, encoder: Any) -> models.Model:
    """Return a CPC model with a context network and a linear predictor set by `config.model`."""
    context = CONTEXTS[options.context](
        options.context_width, options.context_layers, dtype=encoder.dtype
    )
    predictor = models.LinearPredictor(options.num_offsets, options.width, dtype=encoder.dtype)
    return models.make_model(models.CPC(encoder, context, predictor))


def positions(batch: Batch, group: Any, begin: Any, first: Any, last: Any) -> SoundPosition:
    """Return the positions of latents (b, t) in windows that begin at samples `begin` (b, 1).

    A latent covers the samples of its window from `first` up to, but not including, `last`.
    """
    return SoundPosition(
        sequence=batch["sequence"][:, None],
        time=jnp.arange(first.shape[1])[None],
        lane=jnp.zeros((1, 1), jnp.int32),
        group=group[:, None],
        sample=begin + first,
        end=begin + last,
        window=begin,
    )


def shared_input(offsets: Sequence[int], encoder: Any) -> tuple[float, ...]:
    """Return the fraction of each target's samples that its context has seen, by offset.

    A latent covers `receptive_field` samples, and its target at offset k begins k * `stride` later.
    Returns () if `encoder` is None, as for segments of varying length.

    >>> [round(share, 2) for share in shared_input((1, 2, 3), models.ConvEncoder())]
    [0.66, 0.31, 0.0]
    """
    if encoder is None:
        return ()
    field, stride = encoder.receptive_field, encoder.stride
    return tuple(max(0.0, 1 - k * stride / field) for k in offsets)


def write_truth(workdir: pathlib.Path, nats: Mapping[int, float]) -> None:
    """Write the mutual information of a synthetic source at each offset, in nats, for the page."""
    truth = {"offsets": [*nats], "mutual_information": [*nats.values()]}
    write_sealed(workdir / "truth.json", truth)


def without_ending(name: str, suffixes: Collection[str]) -> str:
    """Remove the suffix from the name of a file if it is one of `suffixes`.

    >>> without_ending("a/b.NPY", (".npy",)), without_ending("a.1", (".npy",))
    ('a/b', 'a.1')
    """
    path = pathlib.PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in suffixes else name


def read_file_labels(file: str, names: Sequence[str], suffixes: Collection[str]) -> np.ndarray:
    """Return the label of each named file in a CSV file with lines name,label, "" if it has none.

    A line may lack the folders of the file, or its ending, which is one of `suffixes`.
    """
    path = pathlib.Path(file).expanduser()
    lines = read_named(path, "data.file_labels").splitlines()
    table: dict[str, str] = {}
    for number, row in enumerate(csv.reader(lines, skipinitialspace=True), start=1):
        if not "".join(row).strip():
            continue
        *parts, label = row
        name = ",".join(parts).strip()
        if not parts or table.get(name, label.strip()) != label.strip():
            problem = "has another label on an earlier line" if parts else "must be name,label"
            raise UserError(f"data.file_labels {path}, line {number}: {name or label} {problem}")
        table[name] = label.strip()
    table = {without_ending(name, suffixes): label for name, label in table.items()} | table
    tails: dict[str, set[str]] = {}  # the names of lines without their first folders
    for name, label in table.items():
        parts = name.split("/")
        for i in range(1, len(parts)):
            tails.setdefault("/".join(parts[i:]), set()).add(label)

    def find(name: str) -> str:
        labels = tails.get(name, {""})
        own = table.get(name, table.get(name.rsplit("/", 1)[-1]))
        if own is None and len(labels) > 1:
            problem = f"has {len(labels)} labels for files named {name}"
            raise UserError(f"data.file_labels {path} {problem}: remove the lines of others")
        return min(labels) if own is None else own

    found = np.array([find(name) for name in map(same_name, names)])
    if (found == "").all():
        raise UserError(f"data.file_labels {path} contains none of the files, such as {names[0]}")
    return found


def list_files(
    root: pathlib.Path,
    suffixes: Collection[str],
    skipped: list[tuple[str, str]],
    others: Collection[str] = DOCUMENTS,
) -> dict[str, pathlib.Path]:
    """Return the files below `root` by relative path, without suffix if the path is then unique.

    Other files are appended to `skipped` with the reason, except those with suffixes in `others`.
    Raises UserError if `root` does not exist or contains no files with an accepted suffix.
    """
    advice = f"pass {list_endings(suffixes)} files"
    if root.is_file():
        if root.suffix.lower() not in suffixes:
            raise UserError(f"{root} is not an input of this model: {advice}")
        return {root.stem: root}
    if not root.is_dir():
        raise UserError(f"{root} does not exist: pass a file or folder with --input")
    found = find_data(root, suffixes, others)
    skipped += [*found.unreadable, *found.left_out]
    below = [path.relative_to(root) for path in found.files]
    if not below:
        raise UserError(f"{root} contains no file to embed at any depth: {advice}")
    stems = [path.with_suffix("").as_posix() for path in below]
    count = Counter(stems)
    names = [
        stem if count[stem] == 1 else path.as_posix()
        for stem, path in zip(stems, below, strict=True)
    ]
    if len(set(names)) < len(names):  # such as x.wav, x.flac and x.wav.wav
        names = [path.as_posix() for path in below]
    return dict(zip(names, (root / path for path in below), strict=True))


@contextlib.contextmanager
def skip(name: str, skipped: list[tuple[str, str]]) -> Iterator[None]:
    """Suppress errors from reading a file, and append the file's name and the error to a list."""
    try:
        yield
    except (UserError, OSError) as error:
        skipped.append((printable(name), printable(str(error))))


@functools.partial(jax.jit, static_argnums=(0, 1))
def embed_side_by_side(embed: Any, kinds: str, variables: Any, x: Any) -> jax.Array:
    """Return the features of several `kinds` ("z", "c") of a batch, concatenated."""
    made = dict(zip("zc", embed(variables, x), strict=True))
    return jnp.concatenate([made[kind] for kind in kinds], axis=-1)


def embed_frames(
    model: models.Model, variables: Any, kinds: str, signals: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the features of several `kinds` ("z", "c") of each signal, concatenated."""
    # On the devices once, in one layout for all networks, which then share a compilation.
    weights = jax.device_put(jax.device_get(variables))
    embed = functools.partial(embed_side_by_side, model.embed, kinds, weights)
    stride, (_, ahead) = model.module.encoder.stride, model.module.encoder.frames_around
    long = make_embed_long(model, weights, kinds)
    return embed_utterances(embed, signals, stride, ahead=ahead, embed_long=long)


def make_embed_long(
    model: models.Model, variables: Any, kinds: str
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return embed(waveform), which embeds long input in pieces.

    Features of several `kinds` ("z", "c") are concatenated. Returns None if the model is not a CPC
    or has a bidirectional context, because such a context needs the whole input.
    """
    module = model.module
    if not isinstance(module, models.CPC) or module.is_bidirectional:
        return None
    layers = models.Layers(module, variables, tuple(kinds))

    def embed(waveform: np.ndarray) -> np.ndarray:
        made = layers.embed_long(lambda start, stop: waveform[start:stop], len(waveform))
        return np.concatenate([made[kind] for kind in kinds], axis=-1)

    return embed
