"""Skip-gram with negative sampling on dictionaries: word2vec (Mikolov et al. 2013).

    python -m experiments.text --config configs/text_words.py --workdir runs/words

Every objective from maximum likelihood to InfoNCE is a key away, such as a log-bilinear language
model by noise-contrastive estimation (Mnih & Teh 2012):

    ... --config.model.name=vlbl --config.model.reach=2 --config.model.bias=unigram \
        --config.objective.name=nce --config.objective.k=25 --config.objective.alpha=1 \
        --config.optim.rule=adagrad --config.optim.learning_rate=0.1 --config.data.subsample=0
"""

from typing import Any

from configs.keys import make_config
from configs.words import KEYS


def get_config() -> Any:
    """What takes minutes on two cores."""
    return make_config(KEYS)
