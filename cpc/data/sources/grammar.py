"""A made-up language whose sentences tell of the next ones what is known in closed form."""

import numpy as np

from cpc.data.text.corpus import UNKNOWN, Corpus, Vocabulary

#: Topics, words that only sentences of one topic have, and words that all have.
NUM_TOPICS, OWN_WORDS, COMMON_WORDS = 8, 4, 8


def make_grammar(
    num_documents: int, num_sentences: int, *, order: float = 0.9, seed: int = 0
) -> Corpus:
    """Return documents of so many sentences, each with a topic, which the next one's follows.

    The first topic is uniform. After topic s comes s + 1 (after the last the first), with the
    chance `order`; else any topic, each as likely. A sentence has 4 to 9 words; of the first three
    each is one of its topic's own words, the others are common ones, so that a sentence tells its
    topic, and nothing else of the next.
    """
    rng = np.random.default_rng(seed)
    shape = num_documents, num_sentences
    jump = rng.random(shape) >= order
    topic = rng.integers(NUM_TOPICS, size=shape)
    for t in range(1, num_sentences):
        topic[:, t] = np.where(jump[:, t], topic[:, t], (topic[:, t - 1] + 1) % NUM_TOPICS)
    lengths = rng.integers(4, 10, topic.size)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    own = np.repeat(topic.ravel(), lengths) * OWN_WORDS + rng.integers(OWN_WORDS, size=len(place))
    common = NUM_TOPICS * OWN_WORDS + rng.integers(COMMON_WORDS, size=len(place))
    raw = np.where(place < 3, own, common)
    counts = np.bincount(raw, minlength=NUM_TOPICS * OWN_WORDS + COMMON_WORDS)
    names = [f"topic{i // OWN_WORDS}{'abcd'[i % OWN_WORDS]}" for i in range(NUM_TOPICS * OWN_WORDS)]
    names += [f"common{'abcdefgh'[i]}" for i in range(COMMON_WORDS)]
    falling = np.argsort(-counts, kind="stable")
    rank = np.empty(len(counts), np.int32)
    rank[falling] = np.arange(1, len(counts) + 1)
    words = (UNKNOWN, *(names[i] for i in falling.tolist()))
    vocabulary = Vocabulary(words, np.concatenate([[0], counts[falling]]))
    documents = np.arange(num_documents + 1) * num_sentences
    return Corpus(rank[raw], starts, documents, vocabulary, [])


def grammar_information(offset: int, *, order: float = 0.9) -> float:
    """Return what a sentence tells of the one `offset` later, in nats.

    The topic is Markov, uniform at every place, and a sentence shows it: log s - H(s_(t+k) | s_t),
    where the topic is the expected one with the chance q = p^k + (1 - p^k) / s, else any other.

    >>> round(grammar_information(1), 3), round(grammar_information(3), 3)
    (1.612, 1.07)
    """
    q = order**offset + (1 - order**offset) / NUM_TOPICS
    rest = (1 - q) / (NUM_TOPICS - 1)
    entropy = -sum(p * np.log(p) * n for p, n in ((q, 1), (rest, NUM_TOPICS - 1)) if p > 0)
    return float(np.log(NUM_TOPICS) - entropy)
