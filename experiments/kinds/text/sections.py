"""Report page section for text runs, with the paper's Table 5."""

from cpc.report.engine import Format, Section, Table
from cpc.report.words import Words
from cpc.results import Run, last_scores
from experiments.kinds.paper import TABLE_5
from experiments.training.problem import Page

WORDS = Words(
    examples="text",
    sequence="run",
    ahead="sentences ahead",
    tested="sentences",
    features=("z", "c"),
    baselines=("bag", "mean", "vectors"),
    titles={
        "bag": "bag of words",
        "mean": "mean of the model's embeddings",
        "vectors": "mean of word vectors",
    },
    files={"vocabulary.tsv": "the words by their ids, with counts"},
)
#: Similar data sets of the paper, by task.
LIKE = {"movies": "MR", "products": "CR"}


def paper_section(run: Run) -> Section | None:
    """Return a section with the paper's Table 5 and the run's accuracies on similar tasks."""
    import pandas as pd

    scores = last_scores(run.scores)
    scores = scores[(scores.metric == "accuracy") & scores.task.isin(list(LIKE))]
    if not len(scores):
        return None
    ours = [
        {
            "method": f"here: {WORDS.titles.get(features, features)}",
            **{LIKE[row.task]: 100 * row.value for row in own.itertuples()},
        }
        for features, own in scores.groupby("features", sort=False)
    ]
    rows = [*ours, *({"method": f"paper: {name}", **row} for name, row in TABLE_5.items())]
    formats: dict[str, Format] = {name: ".1f" for name in TABLE_5["CPC"]}
    table = Table("Accuracy, %", pd.DataFrame(rows), "A dash means not measured.", formats)
    note = (
        "The paper's rows come from its Table 5, with models trained on the BookCorpus and words "
        "from word2vec. The sentences here resemble MR and CR, but other people rated them, and "
        "labels are signs of mean ratings. Subj, MPQA and TREC are not available. Old books differ "
        "from reviews, so features learned from books hardly exceed a bag of words fitted to the "
        "reviews."
    )
    return Section("Comparison with the paper", [note], tables=[table])


PAGE = Page(
    words=WORDS,
    use="""from cpc import data, models

embed = models.load("{folder}")
words = models.load_pretrained("{folder}").input["words"].split(" ")
sentences = ["It was a dark night.", "Nobody slept."]  # consecutive sentences
x = data.encode_sentences(sentences, words, {shape[1]})  # (t, words), padded with -1
z, c = embed(x[None])  # both (1, t, width)""",
    sections=(paper_section,),
)
