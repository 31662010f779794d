"""An artificial language in which the information between sentences has a closed form."""

import numpy as np

from cpc.data.text.corpus import Corpus, rank_words

#: Numbers of topics, of words that are specific to each topic, and of common words.
NUM_TOPICS, OWN_WORDS, COMMON_WORDS = 8, 4, 8


def make_grammar(
    num_documents: int, num_sentences: int, *, order: float = 0.9, seed: int = 0
) -> Corpus:
    """Generate documents whose sentences have topics that form a Markov chain.

    The first topic is uniform. With probability `order`, topic s is followed by topic s + 1, and
    the last topic by the first. Otherwise the next topic is uniform. A sentence has 4 to 9 words.
    The first three are specific to its topic and the others are common words, so a sentence
    determines its topic and depends on other sentences only through its topic.
    """
    rng = np.random.default_rng(seed)
    shape = num_documents, num_sentences
    jump = rng.random(shape) >= order
    topic = rng.integers(NUM_TOPICS, size=shape)
    for t in range(1, num_sentences):
        topic[:, t] = np.where(jump[:, t], topic[:, t], (topic[:, t - 1] + 1) % NUM_TOPICS)
    lengths = rng.integers(4, 10, topic.size)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    position = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    number = len(position)
    own = np.repeat(topic.ravel(), lengths) * OWN_WORDS + rng.integers(OWN_WORDS, size=number)
    common = NUM_TOPICS * OWN_WORDS + rng.integers(COMMON_WORDS, size=number)
    raw = np.where(position < 3, own, common)
    counts = np.bincount(raw, minlength=NUM_TOPICS * OWN_WORDS + COMMON_WORDS)
    names = [f"topic{i // OWN_WORDS}{'abcd'[i % OWN_WORDS]}" for i in range(NUM_TOPICS * OWN_WORDS)]
    names += [f"common{'abcdefgh'[i]}" for i in range(COMMON_WORDS)]
    vocabulary, rank = rank_words(names, counts, min_count=0)
    documents = np.arange(num_documents + 1) * num_sentences
    return Corpus(rank[raw], starts, documents, vocabulary, [])


def grammar_information(offset: int, *, order: float = 0.9) -> float:
    """Return the mutual information of two sentences `offset` apart, in nats.

    Topics are uniform, form a Markov chain and are determined by their sentences. For S topics, the
    information is log S - H(s_(t+k) | s_t), where k is the offset and p the order. The later topic
    is s_t + k with probability q = p^k + (1 - p^k) / S, and the other topics are equally likely.

    >>> round(grammar_information(1), 3), round(grammar_information(3), 3)
    (1.612, 1.07)
    """
    q = order**offset + (1 - order**offset) / NUM_TOPICS
    rest = (1 - q) / (NUM_TOPICS - 1)
    entropy = -sum(p * np.log(p) * n for p, n in ((q, 1), (rest, NUM_TOPICS - 1)) if p > 0)
    return float(np.log(NUM_TOPICS) - entropy)
