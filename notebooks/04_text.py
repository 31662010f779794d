# %% [markdown]
# # Text: words and sentences
#
# The configs `text_words` and `text_sentences` train on words and on sentences. This notebook shows
# their parts on synthetic languages, which take seconds. `studies/from_ngram_to_infonce` leads from
# n-gram counts through NCE to InfoNCE.

# %%
import sys
import tempfile

import matplotlib.pyplot as plt
import pandas as pd

sys.path.insert(0, "..")  # contains configs and experiments
from configs import text_sentences, text_words
from cpc import data
from cpc.data.sources.grammar import grammar_information
from cpc.results import read_run
from experiments.train import run

# %% [markdown]
# ## Tokens
# A word is a run of letters and digits in lower case. A sentence ends at `.`, `!`, `?`, a
# terminator of another script, or an empty line. Chinese, Japanese and Thai are split by character.

# %%
data.tokenize('"It is a truth," said Mr. Knightley. Nobody heard him!')

# %% [markdown]
# ## A language model by likelihood and by NCE
# In this Zipfian bigram language of 1,000 words, each word has eight frequent successors, which
# follow it with probability 0.7. A log-bilinear model is trained by likelihood, which scores all
# words at each step, and by NCE, which scores k noise words and assumes log Z = 0 (Mnih and Teh
# 2012). As k grows, NCE approaches likelihood, and log Z stays near 0 without a constraint.

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
results = {}
for config.objective.name, config.objective.k in (("full_softmax", 1), ("nce", 1), ("nce", 25)):
    folder = tempfile.mkdtemp()
    run(config, folder)
    scores = read_run(folder).scores.set_index(["task", "method"]).value
    results[f"{config.objective.name}, k = {config.objective.k}"] = scores
pd.DataFrame(results).T

# %% [markdown]
# ## Sentences
# CPC on sentences follows section 3.3 of the paper. In this grammar, each sentence has a topic, and
# the next sentence has the topic that follows it with probability 0.9, so their mutual information
# is known. The run records log N - L, a lower bound on it.

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
exact = [grammar_information(k, order=config.data.order) for k in last.offset]
plt.bar(last.offset, last.bound, label="log N - L, strict bound")
plt.plot(last.offset, exact, "ko", label="exact information")
plt.xticks(last.offset)
plt.xlabel("sentences ahead")
plt.ylabel("nats")
plt.legend()
plt.show()

# %% [markdown]
# The bound is below the exact information and decreases with the offset. `docs/results/text.md` has
# results and probes for real books.
