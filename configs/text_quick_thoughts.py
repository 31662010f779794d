"""Quick-Thoughts (Logeswaran and Lee 2018), built from components of CPC in minutes of training.

cpc train --config text_quick_thoughts --workdir runs/quick_thoughts

There are two encoders f and g, and no context. By dot products, f of a sentence finds g of the next
sentence and, as a second direction, of the previous sentence, among all sentences in the batch. The
sentence itself is not a candidate, but the authors' code keeps it with score 0, as
--config.negatives.choose=with_zero does. Their encoders are bidirectional GRUs of width 600 over
the sentences of one book, while ours are convolutions.
"""

from configs import text_sentences


def get_config():
    """Return two encoders on the text of `text_sentences`."""
    c = text_sentences.get_config()
    c.model.name = "quick_thoughts"
    c.loss.cosine = False
    c.negatives.temperature = 1.0
    c.optim.learning_rate = 5e-4
    return c
