"""Loading and splitting the text of a config, and drawing runs of sentences."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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

#: Sentences per document of the grammar.
GRAMMAR_SENTENCES = 50
#: Sources of labelled sentences by probe. Labels are sources or, for a single source, rating signs.
LABELLED = {"movies": ("movies",), "products": ("products",), "genre": ("movies", "newspaper")}


class TextData(NamedTuple):
    """Training and test text, and labeled sentences for probes of sentences."""

    train: data.Corpus
    test: data.Corpus
    tasks: Mapping[str, tuple[tuple[str, ...], np.ndarray]] = MappingProxyType({})
    """Sentences and labels, which are 0 or 1, by name of the probe."""
    unused: tuple[tuple[str, str], ...] = ()
    """Pairs (name, reason) for words and sentences that batches never contain."""
    name: str = ""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """Skipped files and unused text, each with the reason."""
        return (*self.train.skipped, *self.unused)

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return fingerprints of the training and test sentences."""
        parts = {"train": self.train, "test": self.test}
        return {
            name: Fingerprint(len(own.sentence_starts) - 1, own.identity())
            for name, own in parts.items()
        }


def load_data(config: Config, log: Callable[[str], object]) -> TextData:
    """Read, pack and split the text of `config.data`, and read the labeled sentences of probes."""
    options = config.data
    corpus = read_corpus(config, log)
    sizes = {"test": options.test_fraction, "block_sentences": options.block_sentences}
    train, test, num_tested = data.split_for_training(corpus, seed=config.seed, **sizes)
    unused = find_unused(corpus, options.max_words)
    if num_tested:
        reason = f"{num_tested:,} training sentences are left out, as the test text contains them"
        unused = (*unused, ("data.test_fraction", reason))
    used = data.describe_corpus(corpus._replace(vocabulary=train.vocabulary))
    num_train, num_test = (len(part.sentence_starts) - 1 for part in (train, test))
    parts = f"{num_train:,} sentences to train, {num_test:,} to test"
    skipped = count_names(corpus.skipped, "files skipped")
    log(f"data: {'; '.join([used, parts, *(reason for _, reason in unused), skipped])}")
    return TextData(train, test, read_tasks(config, log), unused, name_of(config))


def find_unused(corpus: data.Corpus, max_words: int) -> tuple[tuple[str, str], ...]:
    """Return pairs (name, reason) for words and sentences that batches never contain.

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
    reason = f"beyond word {max_words} of their sentence and not used (data.max_words)"
    parts = (
        ("data.max_words", beyond, len(corpus.tokens), "words", reason),
        ("documents", alone, len(lengths), "sentences", "alone in their document and not used"),
    )
    return tuple(
        (name, f"{number:,} of {whole:,} {unit} ({100 * number / whole:.1f} %) are {reason}")
        for name, number, whole, unit, reason in parts
        if number
    )


def read_corpus(config: Config, log: Callable[[str], object]) -> data.Corpus:
    """Read or generate a config's text as packed word ids."""
    options = config.data
    if options.source == "grammar":
        return make_grammar(
            options.num_documents, GRAMMAR_SENTENCES, order=options.order, seed=config.seed
        )
    if options.source == "files":
        path = data_root(config)
    else:
        path = prepare_texts(options.source, log=log) / "text"
    limits = subset(options, "min_count", "max_vocabulary", "max_skipped_fraction")
    form = subset(options, "form", "lowercase")
    return data.read_text_folder(path, data.cache_dir() / "packs", log, **form, **limits)


def read_tasks(
    config: Config, log: Callable[[str], object]
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Return at most `probe.max_sentences` random sentences for each probe, with their labels.

    Sentences about movies or products are labeled by the sign of their rating. Neutral sentences
    are omitted.
    """
    wanted = [name for name in config.probe.tasks if name in LABELLED]
    snippets = read_snippets(log=log) if wanted else {}
    tasks = {}
    for name in wanted:
        parts = [snippets[part] for part in LABELLED[name]]
        pairs = [(text, label) for label, part in enumerate(parts) for text, _ in part]
        if len(parts) == 1:
            pairs = [(text, int(rating > 0)) for text, rating in parts[0] if rating]
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
    """Return a pure function from a step to a batch of runs, drawn by `uniform_windows`.

    A run consists of consecutive sentences of one document. A document with fewer sentences, but at
    least two, is one run. A batch has this process's rows of the global batch. Its arrays are x,
    int32 word ids (b, run_sentences, max_words) padded with -1, and the int32 arrays (b,) sequence
    (row of the global batch), utterance (document) and sample (position of the first sentence among
    all). One document provides the first `document_fraction` of the rows.
    """
    lengths = np.diff(corpus.document_starts)
    documents = np.flatnonzero(lengths > 1)
    if not len(documents):
        raise UserError("every document has fewer than two sentences: add longer documents")
    draw_runs = data.uniform_windows(lengths[documents], run_sentences)
    # Short documents have a run of space on both sides, because branches may count from the end.
    is_short = lengths < run_sentences
    space = np.where(is_short, 2 * run_sentences, lengths)
    offsets = np.cumsum(space) - space + np.where(is_short, run_sentences, 0)
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
            "sample": (offsets[document] + within).astype(np.int32),
        }

    return draw


def cut_runs(
    corpus: data.Corpus, *, run_sentences: int, max_words: int, most: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` disjoint runs of sentences in random order, and their documents.

    Runs are as in `make_runs`. Documents are divided from their beginning.
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
    """Read sentences start to stop as word ids (b, num_sentences, max_words), padded with -1."""
    sentence = start[:, None] + np.arange(num_sentences)
    mask = sentence < stop[:, None]
    sentence = np.where(mask, sentence, start[:, None])
    begin = corpus.sentence_starts[sentence][..., None]
    end = corpus.sentence_starts[sentence + 1][..., None]
    index = begin + np.arange(max_words)
    is_word = mask[..., None] & (index < end)
    return np.where(is_word, corpus.tokens[np.where(is_word, index, begin)], -1).astype(np.int32)
