# %% [markdown]
# # Text: from n-grams to InfoNCE, and on to sentences
#
# Runs are `python -m experiments.train --config configs/text_words.py` (words) and
# `configs/text_sentences.py` (sentences). Here are their parts, on made-up languages that take
# seconds.

# %%
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, "..")  # where configs and experiments are
from configs import text_sentences, text_words
from cpc import data
from cpc.data.sources.grammar import grammar_information
from cpc.models.ngram import kneser_ney, ngram_log_p
from cpc.results import read_run
from cpc.train import make_mesh
from experiments.kinds.words.evaluate import tell
from experiments.kinds.words.run import load_data, make
from experiments.train import run

# %% [markdown]
# ## Words and sentences
# Words are runs of letters and digits, in lower case; sentences end at `.`, `!`, `?`, the
# terminators of other scripts, and empty lines. Chinese, Japanese or Thai is split by character.

# %%
data.tokenize('"It is a truth," said Mr. Knightley. Nobody heard him!')

# %% [markdown]
# ## A language model three ways
# The text is a Zipfian bigram language of 1,000 words: a word is followed by one of eight others
# with probability 0.7. Counting (Kneser-Ney) needs no training; a log-bilinear model is trained by
# likelihood, whose every step scores all words, and by NCE, which scores k noise words and takes
# log Z for 0 (Mnih & Teh 2012).

# %%
config = text_words.get_config()
config.data.source, config.data.subsample, config.data.min_count = "synthetic", 0.0, 1
config.data.positions, config.steps_per_launch, config.epochs = 256, 32, 6
config.model.name, config.model.reach, config.model.width = "vlbl", 2, 32
config.model.bias = "unigram"
config.optim.rule, config.optim.learning_rate = "adagrad", 0.2
config.objective.alpha, config.objective.draws, config.objective.share = 1.0, 0, 1

# %%
text = load_data(config, print)
ngram = kneser_ney(
    text.train.tokens, text.train.sentence_starts, len(text.train.vocabulary.words), 3
)
log_p = ngram_log_p(ngram, text.test.tokens, text.test.sentence_starts)
perplexity = {"counting, order 3": float(np.exp(-log_p.mean()))}
log_z = {}


# %%
def train(name, k=1):
    config.objective.name, config.objective.k = name, k
    made = make(config, text, make_mesh())
    state = made.state
    for launch in range(config.epochs * made.stream.per_epoch):
        state = made.launch(state, made.stream.launch(launch))
    return tell(made._replace(state=state), text.test.tokens, text.test.sentence_starts)


for title, name, k in (
    ("likelihood", "full_softmax", 1),
    ("NCE, k = 1", "nce", 1),
    ("NCE, k = 25", "nce", 25),
):
    told, log_z[title], _ = train(name, k)
    perplexity[title] = float(np.exp(-told.mean()))
perplexity

# %% [markdown]
# More noise words, and NCE comes near likelihood. It was never told to normalize, and does: log Z
# of its model over the contexts of the test text, beside that of the model that was trained to need
# it.

# %%
for title in ("likelihood", "NCE, k = 25"):
    plt.hist(log_z[title], bins=40, alpha=0.6, label=title)
plt.xlabel("log Z, nats")
plt.legend()
plt.show()

# %% [markdown]
# ## Sentences
# The paper's section 3.3, on a grammar whose sentences tell of the next ones what is known: a topic
# that the next sentence's follows with probability 0.9. The run watches log N - L, a
# bound on it.

# %%
config = text_sentences.get_config()
config.data.source = "grammar"
config.num_steps, config.log_every, config.eval_every, config.save_every = 200, 100, 200, 200
config.model.embedding_width = config.model.width = config.model.context_width = 32
config.probe.tasks = ()

# %%
folder = tempfile.mkdtemp()
run(config, folder)

# %%
last = read_run(folder).offsets.query("series == 'strict' and step == 200")
known = [grammar_information(k, order=config.data.order) for k in last.offset]
plt.bar(last.offset, last.bound, label="log N - L, strict bound")
plt.plot(last.offset, known, "ko", label="what a sentence tells, exactly")
plt.xticks(last.offset)
plt.xlabel("sentences ahead")
plt.ylabel("nats")
plt.legend()
plt.show()

# %% [markdown]
# The bound stays below the truth, and falls with the offset as it does. What real books give, and
# what probes find in their sentences: `docs/text.md`.
