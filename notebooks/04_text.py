# %% [markdown]
# # Text: words and sentences
#
# Runs are `python -m experiments.train --config configs/text_words.py` (words) and
# `configs/text_sentences.py` (sentences). Here are their parts, on made-up languages that take
# seconds. `studies/from_ngram_to_infonce` goes from counting over NCE to InfoNCE.

# %%
import sys
import tempfile

import matplotlib.pyplot as plt
import pandas as pd

sys.path.insert(0, "..")  # where configs and experiments are
from configs import text_sentences, text_words
from cpc import data
from cpc.data.sources.grammar import grammar_information
from cpc.results import read_run
from experiments.train import run

# %% [markdown]
# ## Words and sentences
# Words are runs of letters and digits, in lower case; sentences end at `.`, `!`, `?`, the
# terminators of other scripts, and empty lines. Chinese, Japanese or Thai is split by character.

# %%
data.tokenize('"It is a truth," said Mr. Knightley. Nobody heard him!')

# %% [markdown]
# ## A language model two ways
# The text is a Zipfian bigram language of 1,000 words: a word is followed by one of eight others
# with probability 0.7. A log-bilinear model is trained by likelihood, whose every step scores all
# words, and by NCE, which scores k noise words and takes log Z for 0 (Mnih & Teh 2012). More noise
# words, and NCE comes near likelihood; it was never told to normalize, and does.

# %%
config = text_words.get_config()
config.data.source, config.data.subsample, config.data.min_count = "synthetic", 0.0, 1
config.data.positions, config.steps_per_launch, config.epochs = 256, 32, 3
config.model.name, config.model.reach, config.model.width = "vlbl", 2, 32
config.model.bias = "unigram"
config.optim.rule, config.optim.learning_rate = "adagrad", 0.2
config.objective.alpha, config.objective.draws, config.objective.share = 1.0, 0, 1
config.evaluate.similarity = False

# %%
found = {}
for config.objective.name, config.objective.k in (("full_softmax", 1), ("nce", 1), ("nce", 25)):
    folder = tempfile.mkdtemp()
    run(config, folder)
    scores = read_run(folder).scores.set_index(["task", "method"]).value
    found[f"{config.objective.name}, k = {config.objective.k}"] = scores
pd.DataFrame(found).T

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
# what probes find in their sentences: `docs/results/text.md`.
