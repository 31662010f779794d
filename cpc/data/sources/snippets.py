"""Sentences with ratings: movie reviews, product reviews, newspaper editorials.

They come with vaderSentiment (C. J. Hutto and E. Gilbert, "VADER: A Parsimonious Rule-based Model
for Sentiment Analysis of Social Media Text", ICWSM 2014): 10,605 snippets of movie reviews after
Pang and Lee (2005), 3,708 sentences of product reviews after Hu and Liu (2004), 5,190 of New York
Times editorials, each with a rating from -4 to 4, the mean of twenty raters. The texts are their
authors'; they are fetched to be measured on, and nothing is passed on.
"""

from pathlib import Path

from cpc.data.cache import Log, log_to_stderr
from cpc.data.sources.archives import Registered, fetch, read_members
from cpc.data.sources.debian import preparing
from cpc.types import UserError

PACKAGE = Registered(
    "pypi",
    "vaderSentiment",
    "3.3.2",
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    2.5,
)
INNER = "additional_resources/hutto_ICWSM_2014.tar.gz"
FILES = {
    "movies": "movieReviewSnippets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
    "newspaper": "nytEditorialSnippets_GroundTruth.txt",
}


def read_snippets(
    cache: Path | None = None, log: Log = log_to_stderr
) -> dict[str, list[tuple[str, float]]]:
    """Return sentences and ratings of "movies", "products" and "newspaper", fetched if need be."""
    try:
        with preparing("the snippets", cache, "snippets.lock", log) as home:
            archive = fetch(PACKAGE, home / "archives", log)
    except UserError as error:
        raise UserError(
            f"cannot fetch the snippets that probes of sentences ask about: {error} (leave out "
            "movies, products and genre from probe.tasks)"
        ) from error
    (inner,) = read_members(archive, lambda name: name.endswith(INNER))
    wanted = tuple(FILES.values())
    found = read_members(inner[1], lambda name: name.endswith(wanted))
    content = {Path(name).name: text.decode("utf-8", "replace") for name, text in found}
    rows = {  # id, rating, sentence
        name: [line.split("\t", 2) for line in content[file].splitlines()]
        for name, file in FILES.items()
    }
    return {name: [(text, float(rating)) for _, rating, text in own] for name, own in rows.items()}
