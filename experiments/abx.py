r"""ABX errors of features in a folder, by an item file of ZeroSpeech: those of zrc-abx2.

    cpc embed --workdir runs/voices --input /my/recordings --output features/
    cpc abx --features features/ --items dev-clean.item --lose_last_frame

Features are a .npy for each recording, frames by width, at any depth; the item file names them
without folder and ending. Printed are the errors within and across speakers, of phones in the same
context and in any. The frames' distance is that of the folder's times.json, else 10 ms.
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
    max_tokens: int = 10,
    max_speakers: int = 5,
    seed: int = 3459,
) -> list[Score]:
    """Compute, print and return the errors that the items allow."""
    if not (features and items):
        raise UserError("give --features of a folder of .npy files, and --items: see --help")
    folder, path = pathlib.Path(features).expanduser(), pathlib.Path(items).expanduser()
    listed = read_items(path)
    frames = read_features(folder, {item.file for item in listed})
    tokens = cut_tokens(
        listed, frames, frame_seconds(folder), lose_last_frame=lose_last_frame, source=path.name
    )
    exists = [len(token) > 0 for token in tokens]
    print(f"{len(tokens):,} tokens, {len(tokens) - sum(exists):,} of them without a frame left out")
    scores = []
    for across, in_context in itertools.product((False, True), (True, False)):
        method = f"{'across' if across else 'within'}, {'in' if in_context else 'any'} context"
        made = make_cells(
            listed,
            exists,
            across=across,
            in_context=in_context,
            max_tokens=max_tokens,
            max_speakers=max_speakers,
            seed=seed,
        )
        cells = list(made)
        if not cells:
            print(f"no triple of tokens is {method}")
            continue
        score = abx_score(
            listed,
            tokens,
            cells,
            distance=distance,
            data=path.stem,
            features=folder.name,
            method=method,
        )
        print(f"{method}: {100 * score.value:.4f} % ({len(cells):,} cells)")
        scores.append(score)
    return scores


def read_features(folder: pathlib.Path, names: set[str]) -> dict[str, np.ndarray]:
    """Return the named arrays of a folder's .npy files."""
    paths: dict[str, pathlib.Path] = {}
    for path in sorted(folder.rglob("*.npy")):
        if path.stem in names:
            first = paths.setdefault(path.stem, path)
            if first != path:
                raise UserError(
                    f"{first} and {path} have one name, and the items do not tell which is meant: "
                    "give a folder with one of them, or rename it in both the folder and the items"
                )
    if not paths:
        raise UserError(
            f"{folder} has no .npy file of a recording that the items name, such as {min(names)}"
        )
    found = {}
    for name, path in paths.items():
        try:
            check_file(path)
            array = found[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"cannot read the features {path}: {error}") from error
        if array.ndim != 2 or array.dtype.kind != "f":
            raise UserError(f"{path} is not an array of frames by width: embed its recording again")
        is_bad = ~np.isfinite(array).all(axis=1)
        if is_bad.any():
            raise UserError(
                f"{path} has numbers that are not finite in {is_bad.sum():,} of {len(is_bad):,} "
                f"frames, the first is frame {is_bad.argmax()}: embed its recording again"
            )
    return found


def frame_seconds(folder: pathlib.Path) -> float:
    """Return the time from frame to frame, as `experiments.embed` writes it beside features."""
    path = folder / "times.json"
    if not path.exists():
        return FRAME_SECONDS
    content = read_json(path)
    seconds = content.get("frame_seconds") if isinstance(content, dict) else None
    if not isinstance(seconds, float) or not 0 < seconds < float("inf"):
        raise UserError(f"{path} does not say frame_seconds: embed again, or take the file away")
    return seconds


if __name__ == "__main__":
    FEATURES = flags.DEFINE_string("features", None, "Folder of .npy files.")
    ITEMS = flags.DEFINE_string("items", None, "Item file.")
    DISTANCE = flags.DEFINE_enum(
        "distance", "angular", ("angular", "euclidean"), "Between frames, brought to length 1."
    )
    LOSE = flags.DEFINE_bool(
        "lose_last_frame", False, "Cut each token's last frame, as zrc-abx2 and Libri-light do."
    )
    TOKENS = flags.DEFINE_integer(
        "max_tokens", 10, "Of a phone in a cell; of more so many are drawn.", lower_bound=2
    )
    SPEAKERS = flags.DEFINE_integer(
        "max_speakers", 5, "Of X for each A, across speakers.", lower_bound=1
    )
    SEED = flags.DEFINE_integer("seed", 3459, "Of the draws; by default the reference's.")

    def main() -> None:
        """Choose the device and go."""
        cluster.start(cli.DEVICE.value)
        run(
            FEATURES.value, ITEMS.value, DISTANCE.value, LOSE.value,
            TOKENS.value, SPEAKERS.value, SEED.value,
        )  # fmt: skip

    cli.run(main)
