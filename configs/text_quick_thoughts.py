"""Quick-Thoughts (Logeswaran and Lee 2018) from the parts of CPC, at the size of minutes.

python -m experiments.text --config configs/text_quick_thoughts.py --workdir runs/quick_thoughts

Two encoders without a context: f of a sentence finds g of the next one and, as a second direction,
of the one before, among all sentences of the batch, by dot products. The own sentence is no
candidate; the authors' code keeps it with the score 0, as --config.negatives.choose=with_zero does.
Theirs are bidirectional GRUs of 600 over the sentences of one book; here they are convolutions.
"""

from typing import Any

from configs import text_sentences


def get_config() -> Any:
    """The text and encoder of `text_sentences`, twice."""
    c = text_sentences.get_config()
    c.model.name = "quick_thoughts"
    c.loss.cosine = False
    c.negatives.temperature = 1.0
    c.optim.learning_rate = 5e-4
    return c
