"""Skip-gram with negative sampling on dictionaries: word2vec (Mikolov et al. 2013).

    cpc train --config text_words --workdir runs/words

Measured on 2 CPU cores: 70 s in total for 5 epochs of 5.6 million words. WordSim-353 0.58 [0.49,
0.65], SimLex-999 0.35 [0.29, 0.40], analogies 18 %; gensim with the same settings 0.58 and 0.36
(`cpc bench --part text`: 725,000 words per second, gensim 841,000).

Keys select other models and objectives, from maximum likelihood to InfoNCE, such as a log-bilinear
language model with noise-contrastive estimation (Mnih & Teh 2012):

    ... --config.model.name=vlbl --config.model.reach=2 --config.model.bias=unigram \
        --config.objective.name=nce --config.objective.k=25 --config.objective.alpha=1 \
        --config.objective.share=1 --config.objective.draws=0 --config.data.subsample=0 \
        --config.optim.rule=adagrad --config.optim.learning_rate=0.1
"""

from configs.keys import make_config
from configs.words import KEYS


def get_config():
    """Return the default settings, which take minutes on two cores."""
    return make_config(KEYS)
