r"""Compute ABX errors of the features in a folder from a ZeroSpeech item file, as zrc-abx2 does.

    cpc embed --workdir runs/voices --input /my/recordings --output features/
    cpc abx --features features/ --items dev-clean.item --lose_last_frame

The folder contains one .npy file (frames, width) per recording, at any depth. The item file refers
to each by its name without folder and suffix. Prints the errors within and across speakers, for
phones in the same context and in any context. The time between frames is read from times.json and
is 10 ms if that file does not exist.
"""

import itertools
import pathlib

import numpy as np
from absl import flags

from cpc.data import read_items
from cpc.data.walk import check_file
from cpc.evaluate import abx_score, cut_tokens, make_cells
from cpc.files import read_json
from cpc.results import Score
from cpc.types import UserError
from experiments.command import cli, cluster

FRAME_SECONDS = 0.01


def run(
    features: str | None,
    items: str | None,
    distance: str = "angular",
    lose_last_frame: bool = False,
    **sampling: int,
) -> list[Score]:
    """Compute, print and return the ABX errors in all settings for which the items have triples.

    `sampling` are keywords of `cpc.evaluate.make_cells`.
    """
    if not (features and items):
        raise UserError(
            "--features and --items are required, e.g. --features features/ --items dev.item"
        )
    folder, path = pathlib.Path(features).expanduser(), pathlib.Path(items).expanduser()
    listed = read_items(path)
    frames = read_features(folder, {item.file for item in listed})
    tokens = cut_tokens(
        listed, frames, frame_seconds(folder), lose_last_frame=lose_last_frame, source=path.name
    )
    mask = [len(token) > 0 for token in tokens]
    print(f"{len(tokens):,} tokens; {len(tokens) - sum(mask):,} without a frame are skipped")
    names, scores = {"distance": distance, "data": path.stem, "features": folder.name}, []
    for across, in_context in itertools.product((False, True), (True, False)):
        method = f"{'across' if across else 'within'}, {'in' if in_context else 'any'} context"
        cells = list(make_cells(listed, mask, across=across, in_context=in_context, **sampling))
        if not cells:
            print(f"{method}: the items have no such triple")
            continue
        score = abx_score(listed, tokens, cells, method=method, **names)
        print(f"{method}: {100 * score.value:.4f} % ({len(cells):,} cells)")
        scores.append(score)
    return scores


def read_features(folder: pathlib.Path, names: set[str]) -> dict[str, np.ndarray]:
    """Read the .npy files in a folder whose names, without suffix, are in `names`."""
    paths: dict[str, pathlib.Path] = {}
    for path in sorted(folder.rglob("*.npy")):
        if path.stem in names:
            first = paths.setdefault(path.stem, path)
            if first != path:
                raise UserError(f"{first} and {path} have the same name: remove or rename one")
    if not paths:
        raise UserError(
            f"{folder} has no features of the items, such as {min(names)}.npy: "
            "set --features to the folder that contains them"
        )
    found = {}
    for name, path in paths.items():
        try:
            check_file(path)
            array = found[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"cannot read the features {path}: {error}") from error
        if array.ndim != 2 or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise UserError(
                f"{path} must contain finite floats of shape (frames, width): embed its recording "
                "again"
            )
    return found


def frame_seconds(folder: pathlib.Path) -> float:
    """Return the time between frames in seconds.

    It is read from times.json, which `experiments.embed` writes, and defaults to `FRAME_SECONDS`.
    """
    path = folder / "times.json"
    if not path.exists():
        return FRAME_SECONDS
    content = read_json(path)
    seconds = content.get("frame_seconds") if isinstance(content, dict) else None
    if not isinstance(seconds, float) or not 0 < seconds < float("inf"):
        raise UserError(f"{path} has no valid frame_seconds: embed again, or remove the file")
    return seconds


if __name__ == "__main__":
    FEATURES = flags.DEFINE_string("features", None, "Folder of .npy files.")
    ITEMS = flags.DEFINE_string("items", None, "Item file.")
    DISTANCE = flags.DEFINE_enum(
        "distance", "angular", ("angular", "euclidean"), "Distance between frames of unit norm."
    )
    LOSE = flags.DEFINE_bool(
        "lose_last_frame", False, "Drop each token's last frame, as zrc-abx2 and Libri-light do."
    )
    TOKENS = flags.DEFINE_integer(
        "max_tokens", 10, "Maximum number of tokens per phone in a cell.", lower_bound=2
    )
    SPEAKERS = flags.DEFINE_integer(
        "max_speakers", 5, "Maximum number of speakers of X for each A.", lower_bound=1
    )
    SEED = flags.DEFINE_integer("seed", 3459, "Random seed; zrc-abx2 uses the same default.")

    def main() -> None:
        """Start the device and compute the errors."""
        cluster.start(cli.DEVICE.value)
        run(
            FEATURES.value, ITEMS.value, DISTANCE.value, LOSE.value,
            max_tokens=TOKENS.value, max_speakers=SPEAKERS.value, seed=SEED.value,
        )  # fmt: skip

    cli.run(main)
