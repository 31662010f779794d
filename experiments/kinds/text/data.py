"""From the data section of a text config to sentences, their split, and runs of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from cpc import data
from cpc.data.sources.grammar import make_grammar
from cpc.data.sources.snippets import read_snippets
from cpc.data.sources.texts import prepare_texts
from cpc.data.walk import Skipped, count_names
from cpc.types import Batch, UserError
from experiments.command.config import Config, subset
from experiments.command.run_dir import Fingerprint
from experiments.training.checks import data_root, name_of

#: Of a document of the grammar.
GRAMMAR_SENTENCES = 50
#: Probes of sentences with labels: which snippets, and whether their sign is asked for.
LABELLED = {"movies": ("movies",), "products": ("products",), "genre": ("movies", "newspaper")}


class TextData(NamedTuple):
    """What an experiment on text is run on."""

    train: data.Corpus
    test: data.Corpus
    tasks: Mapping[str, tuple[tuple[str, ...], np.ndarray]]
    """Name of a probe -> sentences, and a label 0 or 1 of each."""
    unused: tuple[tuple[str, str], ...] = ()
    """(name, reason) of words and sentences of the text that no batch can have."""
    name: str = ""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """What was left out, and why."""
        return (*self.train.skipped, *self.unused)

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return what tells the parts of these data from those of others."""
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}


def load_data(config: Config, log: Callable[[str], object]) -> TextData:
    """Read, pack and split the text of `config.data`, and read what the probes ask about."""
    options = config.data
    corpus = read_corpus(config, log)
    train, test, num_tested = data.split_for_training(
        corpus,
        test=options.test_fraction,
        seed=config.seed,
        block_sentences=options.block_sentences,
    )
    unused = find_unused(corpus, options.max_words)
    if num_tested:
        why = f"{num_tested:,} sentences to train on are left out, as the test text has them too"
        unused = (*unused, ("data.test_fraction", why))
    cut = "".join(f"{reason}; " for _, reason in unused)
    used = data.describe_corpus(corpus._replace(vocabulary=train.vocabulary))
    log(
        f"data: {used}; {len(train.sentence_starts) - 1:,} sentences to "
        f"train, {len(test.sentence_starts) - 1:,} to test; {cut}"
        + count_names(corpus.skipped, "files skipped")
    )
    return TextData(train, test, read_tasks(config, log), unused, name_of(config))


def find_unused(corpus: data.Corpus, max_words: int) -> tuple[tuple[str, str], ...]:
    """Return (name, reason) of what of a text is in no batch, with its share.

    >>> starts, words = np.array([0, 4, 6]), data.Vocabulary(("<unk>", "a"), np.array([0, 6]))
    >>> corpus = data.Corpus(np.ones(6, int), starts, np.array([0, 1, 2]), words, [])
    >>> for _, reason in find_unused(corpus, 2):
    ...     print(reason)
    2 of 6 words (33.3 %) are beyond word 2 of their sentence and not used (data.max_words)
    2 of 2 sentences (100.0 %) are alone in their document and not used
    """
    lengths = np.diff(corpus.sentence_starts)
    beyond = int(np.maximum(lengths - max_words, 0).sum())
    alone = int((np.diff(corpus.document_starts) == 1).sum())
    parts = (
        ("data.max_words", beyond, len(corpus.tokens), "words",
         f"beyond word {max_words} of their sentence and not used (data.max_words)"),
        ("documents", alone, len(lengths), "sentences", "alone in their document and not used"),
    )  # fmt: skip
    return tuple(
        (name, f"{number:,} of {whole:,} {what} ({100 * number / whole:.1f} %) are {why}")
        for name, number, whole, what, why in parts
        if number
    )


def read_corpus(config: Config, log: Callable[[str], object]) -> data.Corpus:
    """Return the text of a config, packed."""
    options = config.data
    if options.source == "grammar":
        return make_grammar(
            options.num_documents, GRAMMAR_SENTENCES, order=options.order, seed=config.seed
        )
    if options.source == "files":
        path = data_root(config)
    else:
        path = prepare_texts(options.source, log=log) / "text"
    return data.read_text_folder(
        path,
        data.cache_dir() / "packs",
        log,
        **subset(options, "form", "lowercase", "min_count", "max_vocabulary"),
        max_skipped_fraction=options.max_skipped_fraction,
    )


def read_tasks(
    config: Config, log: Callable[[str], object]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Return sentences and labels of the probes that have them, some at random if these are many.

    A sentence of movies or products has the sign of its rating; those without one are left out.
    """
    wanted = [name for name in config.probe.tasks if name in LABELLED]
    snippets = read_snippets(log=log) if wanted else {}
    tasks = {}
    for name in wanted:
        parts = [snippets[part] for part in LABELLED[name]]
        if len(parts) == 1:
            pairs = [(text, int(rating > 0)) for text, rating in parts[0] if rating]
        else:
            pairs = [(text, label) for label, part in enumerate(parts) for text, _ in part]
        order = np.random.default_rng(config.seed).permutation(len(pairs))
        chosen = [pairs[i] for i in order[: config.probe.max_sentences or None].tolist()]
        tasks[name] = tuple(text for text, _ in chosen), np.array([label for _, label in chosen])
    return tasks


def make_runs(
    corpus: data.Corpus,
    *,
    run_sentences: int,
    max_words: int,
    batch_size: int,
    seed: int,
    document_fraction: float = 0.0,
) -> Callable[[int], Batch]:
    """Return step -> batch of runs of sentences, drawn as by `uniform_windows`: pure in the step.

    A run is of one document, and a document that is shorter is a run by itself, if it has two
    sentences. The first `document_fraction` of the rows are of the first row's document, each at a
    place of its own. A batch, this process's rows of the global one: x int32 (b, run_sentences,
    max_words), ids of words, filled up with -1; and (b,) sequence (row of the global batch),
    utterance (its document) and sample (its first sentence's place among all).
    """
    lengths = np.diff(corpus.document_starts)
    documents = np.flatnonzero(lengths > 1)
    if not len(documents):
        raise UserError("no document has two sentences in a row: give more text, or other files")
    draw_runs = data.uniform_windows(lengths[documents], run_sentences)
    # A short document has a run on either side to itself, as its own may be counted from its end.
    is_short = lengths < run_sentences
    room = np.where(is_short, 2 * run_sentences, lengths)
    line = np.cumsum(room) - room + np.where(is_short, run_sentences, 0)
    num_shared = round(document_fraction * batch_size)
    rows_each = batch_size // jax.process_count()
    rows = np.arange(rows_each) + jax.process_index() * rows_each

    def draw(step: int) -> Batch:
        rng = np.random.default_rng((seed, step))
        which, within = draw_runs(rng, batch_size)
        if num_shared:
            starts = max(1, lengths[documents[which[0]]] - run_sentences + 1)
            which[:num_shared], within[:num_shared] = which[0], rng.integers(0, starts, num_shared)
        document, within = documents[which[rows]], within[rows]
        start = corpus.document_starts[document] + within
        stop = np.minimum(start + run_sentences, corpus.document_starts[document + 1])
        return {
            "x": read_sentences(corpus, start, stop, run_sentences, max_words),
            "sequence": rows.astype(np.int32),
            "utterance": document.astype(np.int32),
            "sample": (line[document] + within).astype(np.int32),
        }

    return draw


def cut_runs(
    corpus: data.Corpus, *, run_sentences: int, max_words: int, most: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return runs that share no sentence, in random order, as `make_runs` has them, and documents.

    Each document is cut from its beginning; of more runs than `most`, that many are drawn.
    """
    counts = -(-np.diff(corpus.document_starts) // run_sentences)
    document = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = corpus.document_starts[document] + run_sentences * number
    stop = np.minimum(start + run_sentences, corpus.document_starts[document + 1])
    runs = np.flatnonzero(stop - start > 1)
    chosen = np.random.default_rng(seed).permutation(runs)[:most]
    x = read_sentences(corpus, start[chosen], stop[chosen], run_sentences, max_words)
    return x, document[chosen]


def read_sentences(
    corpus: data.Corpus, start: np.ndarray, stop: np.ndarray, num_sentences: int, max_words: int
) -> np.ndarray:
    """Return words of sentences from start to stop, (b, num_sentences, max_words), else -1."""
    sentence = start[:, None] + np.arange(num_sentences)
    exists = sentence < stop[:, None]
    sentence = np.where(exists, sentence, start[:, None])
    begin = corpus.sentence_starts[sentence][..., None]
    end = corpus.sentence_starts[sentence + 1][..., None]
    place = begin + np.arange(max_words)
    is_word = exists[..., None] & (place < end)
    return np.where(is_word, corpus.tokens[np.where(is_word, place, begin)], -1).astype(np.int32)


def fingerprint(corpus: data.Corpus) -> Fingerprint:
    """Return where sentences begin."""
    return Fingerprint(len(corpus.sentence_starts) - 1, corpus.sentence_starts.tobytes())
