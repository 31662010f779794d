"""Probes that predict sentiment, genre and the next sentence from sentence features.

Word vectors are read from the text formats of word2vec, GloVe and fastText.
"""

import codecs
import functools
import itertools
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cpc import data, evaluate
from cpc.data import Vocabulary, index_of
from cpc.files import check_regular
from cpc.models import make_model
from cpc.results import Outcomes, Score, digest
from cpc.types import UserError
from experiments.command.config import Config, subset
from experiments.kinds.text.data import LABELLED, TextData, cut_runs
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask, feature_names, lacks

#: Number of lines from which the vector width is inferred if a file has no header.
NUM_FIRST_LINES = 100
MAX_LINE_BYTES = 1 << 20


class Vectors(NamedTuple):
    """Vectors for the words of a vocabulary and for additional words."""

    own: np.ndarray
    """Vectors (words, width) of the vocabulary. Words without a vector have zeros."""
    known: np.ndarray
    """Ids of the words with a vector."""
    new_words: tuple[str, ...]
    others: np.ndarray
    """Vectors (new words, width) of `new_words`."""


def read_vectors(path: pathlib.Path, vocabulary: Vocabulary) -> Vectors:
    """Read word vectors from a file in which each line is a word followed by numbers.

    Fields are separated by spaces or tabs. Two integers on the first line are word2vec's header:
    the number of words and the vector width. If there is no header, the most frequent width in the
    first lines is used. Words may contain spaces, as in GloVe.
    """
    index, rows, new = index_of(vocabulary), {}, {}
    try:
        check_regular(path)
        lines = read_lines(path)
        first = [*itertools.islice(lines, NUM_FIRST_LINES)]
        header = first[0].split() if first else []
        has_header = len(header) == 2 and b"".join(header).isdigit()
        width = int(header[1]) if has_header else find_width(first)
        for number, line in enumerate(itertools.chain(first, lines), start=1):
            if not line or (number == 1 and has_header):
                continue
            try:
                word, vector = parse_line(line, width, has_header)
            except ValueError as error:
                problem, advice = error, "correct or remove the line"
                if any(byte < 32 and byte not in b"\t\v\f" for byte in line):
                    problem, advice = "contains binary numbers", "save the vectors as text"
                subject = f"line {number} of the word vectors {path}"
                raise UserError(f"{subject} {problem}: {advice}") from error
            (rows if word in index else new)[index.get(word, word)] = vector
    except OSError as error:
        raise UserError(f"cannot read the word vectors {path}: {error}") from error
    if len(rows) < 2:
        problem = "cover too few words of the text"
        raise UserError(f"the word vectors {path} {problem} (got {len(rows)}): use other vectors")
    own = np.zeros((len(vocabulary.words), width), np.float32)
    own[list(rows)] = list(rows.values())
    others = np.array(list(new.values()), np.float32).reshape(len(new), width)
    return Vectors(own, np.array(sorted(rows)), tuple(map(str, new)), others)


def read_lines(path: pathlib.Path) -> Iterator[bytes]:
    """Yield lines of a file without line ends and byte order mark, splitting long lines."""
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        while line := file.readline(MAX_LINE_BYTES):
            yield line.rstrip()


def find_width(lines: Sequence[bytes]) -> int:
    """Return the most frequent count of trailing numbers per line.

    >>> find_width([b". . . 3 4", b"1990 5 6", b"x 1"])
    2
    """
    rows = (reversed(line.split()[1:]) for line in lines)
    counts = Counter(len([*itertools.takewhile(is_number, row)]) for row in rows)
    return max(counts, key=lambda width: counts[width], default=0)


def is_number(text: bytes) -> bool:
    """Return whether `text` parses as a float."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_line(line: bytes, width: int, has_header: bool) -> tuple[str, np.ndarray]:
    """Return a line's word and vector.

    Raises a ValueError whose message continues a sentence such as "line 3 ...". A word that ends
    with a number is an error, unless the number is an integer and the file has a header.
    """
    fields = line.split()
    if not 0 < width < len(fields):
        raise ValueError(f"must be a word and {width} numbers (got {len(fields)} fields)")
    rest = fields[1:-width]
    if rest and is_number(rest[-1]) and not (has_header and rest[-1].isdigit()):
        raise ValueError(f"has more than {width} numbers")
    try:
        vector = np.array(fields[-width:]).astype(np.float32)
    except ValueError:
        vector = np.array([np.nan])
    if not np.isfinite(vector).all():
        raise ValueError(f"does not end with {width} finite numbers")
    try:
        return line.rsplit(None, width)[0].decode(), vector
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start + 1})") from None


#: Number of sentences that are embedded per batch.
BATCH = 512
#: Maximum number of held-out runs of probe next, and minimum number for an interval. Intervals over
#: 21 runs contain the truth in 94 % of simulated texts.
NEXT_RUNS, MIN_RUNS = 512, 20


#: Probe tasks by name. Each is a function of (config, text) that returns a scoring function.
TASKS: dict[str, Callable[[Config, TextData], Any]] = {
    "next": lambda config, text: functools.partial(next_scores, ask_next(config, text)),
    **{task: lambda *_, task=task: functools.partial(sentence_scores, task) for task in LABELLED},
}


def probe_tasks(config: Config, text: TextData) -> list[ProbeTask]:
    """Return the tasks in `probe.tasks`, after checking word vectors and test text."""
    if config.probe.word_vectors:
        vectors_of(config, text)
    return [ProbeTask(task, TASKS[task](config, text)) for task in config.probe.tasks]


def vectors_of(config: Config, text: TextData) -> Vectors:
    """Read the word vectors in `probe.word_vectors`."""
    path = pathlib.Path(config.probe.word_vectors).expanduser()
    return read_vectors(path, text.train.vocabulary)


def feature_sets(context: ProbeContext, tasks: Sequence[ProbeTask]) -> Iterator[FeatureSet]:
    """Yield each feature as a function of sentences that also knows words with word vectors."""
    widen_once = functools.cache(lambda: widen(context))

    def embed(name, sentences):
        (words, wide), options = widen_once(), context.config.data
        x = data.encode_sentences(sentences, words, options.max_words, lowercase=options.lowercase)
        return make_features(wide, name)(x)

    for name in feature_names(context.config, tasks):
        yield FeatureSet(name, functools.partial(embed, name))


def sentence_scores(task: str, context: ProbeContext, features: FeatureSet) -> Iterator[Score]:
    """Yield a feature's cross-validated accuracy by logistic regression."""
    (sentences, labels), num_folds = context.data.tasks[task], context.config.probe.num_folds
    is_bag = features.name == "bag"  # its vocabulary comes from the labeled sentences
    x = own_bag(sentences) if is_bag else features.values(sentences)
    fit = evaluate.fit_sparse if is_bag else evaluate.fit_dense
    found = evaluate.cross_validate(fit, x, labels, num_folds=num_folds)
    usual = max(found.l2s, key=found.l2s.count)
    outcomes = Outcomes(found.correct, items=digest(task, found.items, labels))
    num_unconverged = found.num_unconverged
    note = f", {num_unconverged} of {num_folds} fits not converged" if num_unconverged else ""
    chance = np.bincount(labels).max() / len(labels)
    yield make_score(task, "snippets", features.name, outcomes, chance, f"l2 {usual:g}{note}")


def make_score(
    task: str, source: str, name: str, outcomes: Outcomes, chance: float, setting: str
) -> Score:
    """Return a score whose confidence interval resamples sentences or runs."""
    low, high = evaluate.bootstrap_interval(outcomes.sums.astype(float), outcomes.counts)
    method = "logistic" if task in LABELLED else "score"
    return Score(
        task, source, "sentence", name, method, "accuracy",
        float(outcomes.sums.sum() / outcomes.counts.sum()), low, high, float(chance),
        num_test=int(outcomes.counts.sum()), setting=setting, outcomes=outcomes,
    )  # fmt: skip


def own_bag(sentences: tuple[str, ...]) -> Any:
    """Return bags of words, limited to words that at least two sentences contain."""
    tokens = [[word for word in data.tokenize(one) if word[0].isalnum()] for one in sentences]
    counts = Counter(itertools.chain.from_iterable(map(set, tokens)))
    kept = sorted(word for word, count in counts.items() if count > 1)
    index = {word: number for number, word in enumerate(kept)}
    ids = [np.array([index[word] for word in one if word in index], int) for one in tokens]
    return evaluate.bag_of_words(ids, len(index))


def make_features(context: ProbeContext, name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from sentences without context (n, w) to features (n, width)."""
    config, text, model, variables, *_ = context
    if name == "mean":
        table = np.asarray(variables["params"]["encoder"]["embedding"])
        return functools.partial(mean_of_words, table=table)
    if name == "vectors":
        found = vectors_of(config, text)
        return functools.partial(mean_of_words, table=np.concatenate([found.own, found.others]))
    if name.startswith("random"):
        variables = context.untrained(np.zeros((1, 1, config.data.max_words), np.int32))
    embed = jax.jit(lambda x: model.embed(variables, x[:, None])["zc".index(name[-1])][:, 0])

    def features(x):
        padded = np.pad(x, ((0, -len(x) % BATCH), (0, 0)), constant_values=-1)
        parts = [embed(jnp.asarray(part)) for part in padded.reshape(-1, BATCH, x.shape[1])]
        return np.concatenate(parts)[: len(x)].astype(np.float32)

    return features


def mean_of_words(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return each sentence's mean word vector, which is zero for a sentence without words.

    >>> mean_of_words(np.array([[1, 0, -1], [-1, -1, -1]]), np.array([[2.0], [4.0]])).tolist()
    [[3.0], [0.0]]
    """
    is_word = (x >= 0)[..., None]
    total = np.where(is_word, table[np.maximum(x, 0)], 0).sum(axis=1)
    return (total / np.maximum(is_word.sum(axis=1), 1)).astype(np.float32)


#: Wrong answers (b, t - 1, w) to the question which sentence comes next, and a mask (b, t - 1) of
#: valid questions. Right answers are all sentences of a run except the first.
Questions: TypeAlias = tuple[np.ndarray, np.ndarray]


def ask_next(config: Config, text: TextData) -> tuple[np.ndarray, dict[str, Questions]]:
    """Return disjoint runs (b, t, w) of test sentences, and questions by kind of wrong answer.

    Wrong answers come from any other run, from another run of the same document, or from the same
    run. Any other run usually belongs to another document and differs in topic and style.
    """
    sizes = subset(config.data, "run_sentences", "max_words")
    x, documents = cut_runs(text.test, **sizes, most=NEXT_RUNS, seed=config.seed + 2)
    mask, number = np.any(x >= 0, axis=-1), len(x)

    def align_runs(chosen: np.ndarray) -> np.ndarray:  # the same index, or the first sentence
        return np.where(mask[chosen][..., None], x[chosen], x[chosen][:, :1])[:, 1:]

    order = np.argsort(documents, kind="stable")
    ranked, mate = documents[order], np.arange(number)
    last = np.searchsorted(ranked, ranked, "right") - 1
    after = np.where(mate < last, mate + 1, np.searchsorted(ranked, ranked))
    mate[order] = order[after]  # the document's next run, or the same run if there is only one
    # Any index in the run except t and t + 1.
    time, room = np.arange(x.shape[1] - 1), np.maximum(mask.sum(1, keepdims=True) - 2, 1)
    index = np.random.default_rng(config.seed + 3).integers(0, room, (number, len(time)))
    index = np.minimum(index + 2 * (index >= time), x.shape[1] - 1)
    others = {
        "sentence": align_runs(np.roll(np.arange(number), 1)),
        "sentence within document": align_runs(mate),
        "sentence within run": x[np.arange(number)[:, None], index],
    }
    # Small texts may repeat sentences, but a question needs two different sentences.
    asked = {
        unit: mask[:, 1:] & np.any(other != x[:, 1:], axis=-1) & np.any(other >= 0, axis=-1)
        for unit, other in others.items()
    }
    asked["sentence within document"][mate == np.arange(number)] = False
    if asked["sentence"].any(axis=1).sum() < 2:
        number = f"{len(text.test.sentence_starts) - 1:,} sentences"
        problem = f"the test text has fewer than two runs to compare (got {number})"
        raise lacks("next", problem, "add text, lower data.run_sentences")
    return x, {unit: (others[unit], own) for unit, own in asked.items() if own.any()}


def next_scores(
    questions: tuple[np.ndarray, dict[str, Questions]], context: ProbeContext, features: FeatureSet
) -> Iterator[Score]:
    """Yield next-sentence accuracies, one for each source of wrong answers."""
    name, (x, by_unit) = features.name, questions
    compare = predicted_right if name in ("c", "random c") else similar_right
    for unit, (other, asked) in by_unit.items():
        number = int(asked.any(axis=1).sum())
        has_interval = number >= MIN_RUNS
        items = digest("next", x, asked) if has_interval else ""
        setting = f"{number} runs" + ("" if has_interval else ", too few for an interval")
        right = compare(context, name, x, other)
        outcomes = Outcomes((right & asked).sum(1), asked.sum(1), items=items)
        score = make_score("next", context.data.name, name, outcomes, 0.5, setting)
        score = score._replace(unit=unit)
        yield score if has_interval else score._replace(low=None, high=None)


def predicted_right(
    context: ProbeContext, name: str, x: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Return whether CPC predictions score next sentences in runs (b, t, w) above wrong ones."""
    config, _, model, variables, *_ = context
    if name == "random c":
        variables = context.untrained(x[:1])

    @jax.jit
    def compare(x, other):
        outputs, _ = model.apply(variables, {"x": x}, False)
        of_other, _ = model.apply(variables, {"x": other}, False)
        predictions = outputs.predictions[:, :-1, 0]

        def score(z):
            scale = jnp.linalg.norm(z, axis=-1) if config.loss.cosine else 1.0
            return (predictions * z).sum(-1) / jnp.maximum(scale, 1e-6)

        return score(outputs.z[:, 1:]) > score(of_other.z)

    parts = [slice(first, first + 64) for first in range(0, len(x), 64)]
    return np.concatenate([compare(x[part], other[part]) for part in parts])


def similar_right(context: ProbeContext, name: str, x: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return whether sentences have a larger cosine with the next than with the wrong sentence."""

    def bag(x):  # words weighted by their negative log frequency
        counts = data.count_words(context.data.train)
        nats = np.log((1 + counts.sum()) / (1 + counts))
        words = evaluate.bag_of_words([row[row >= 0] for row in x], len(counts))
        return words.multiply(nats).tocsr()

    features: Any = bag if name == "bag" else make_features(context, name)
    now, after, another = (
        features(part.reshape(-1, x.shape[-1])) for part in (x[:, :-1], x[:, 1:], other)
    )

    def cosine(a, b):
        norms = [np.sqrt(np.ravel((one * one).sum(axis=1))) for one in (a, b)]
        return np.ravel((a * b).sum(axis=1)) / np.maximum(norms[0] * norms[1], 1e-12)

    return (cosine(now, after) > cosine(now, another)).reshape(other.shape[:2])


def widen(context: ProbeContext) -> tuple[tuple[str, ...], ProbeContext]:
    """Add the words in `probe.word_vectors`, if it is set, to vocabulary, model and variables.

    New words' embeddings are the linear map of their vectors that fits the known words best (Kiros
    et al. 2015, section 2.2; the paper's section 3.3).
    """
    config, text, model, variables, *_ = context
    words = text.train.vocabulary.words
    if not config.probe.word_vectors:
        return words, context
    found, params, parts = vectors_of(config, text), dict(variables["params"]), {}
    every = (*words, *found.new_words)
    for part in [name for name, own in params.items() if "embedding" in own]:
        table = np.asarray(params[part]["embedding"])
        linear = np.linalg.lstsq(found.own[found.known], table[found.known], rcond=None)[0]
        new = found.others @ linear
        wide = jnp.asarray(np.concatenate([table[: len(words)], new]), table.dtype)
        params[part] = {**params[part], "embedding": wide}
        parts[part] = getattr(model.module, part).clone(vocabulary=len(every))
    wide = make_model(model.module.clone(**parts))
    return every, context._replace(model=wide, variables={**variables, "params": params})
