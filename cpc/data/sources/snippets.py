"""Sentences from movie reviews, product reviews and newspaper editorials, with sentiment ratings.

The source is vaderSentiment (C. J. Hutto and E. Gilbert, "VADER: A Parsimonious Rule-based Model
for Sentiment Analysis of Social Media Text", ICWSM 2014): 10,605 snippets of movie reviews after
Pang and Lee (2005), 3,708 sentences of product reviews after Hu and Liu (2004), and 5,190 of New
York Times editorials. Ratings from -4 to 4 are means over twenty raters. The texts belong to their
authors. They are only fetched for evaluation and not redistributed.
"""

from pathlib import Path

from cpc.data.cache import Log, log_to_stderr, preparing
from cpc.data.sources.archives import Registered, fetch, read_members
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


def read_snippets(log: Log = log_to_stderr) -> dict[str, list[tuple[str, float]]]:
    """Fetch the snippets if needed, and return (sentence, rating) pairs for each of `FILES`."""
    try:
        with preparing("snippets", log) as home:
            archive = fetch(PACKAGE, home / "archives", log)
    except UserError as error:
        raise UserError(
            f"cannot fetch the snippets for sentence probes: {error} (alternatively, remove "
            "movies, products and genre from probe.tasks)"
        ) from error
    (inner,) = read_members(archive, lambda name: name.endswith(INNER))
    files = tuple(FILES.values())
    members = read_members(inner[1], lambda name: name.endswith(files))
    content = {Path(name).name: text.decode("utf-8", "replace") for name, text in members}
    rows = {  # id, rating, sentence
        name: [line.split("\t", 2) for line in content[file].splitlines()]
        for name, file in FILES.items()
    }
    return {name: [(text, float(rating)) for _, rating, text in own] for name, own in rows.items()}
