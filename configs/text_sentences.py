"""CPC on sentences of books as in the paper's section 3.3, sized for six minutes on 2 cores.

cpc train --config text_sentences --workdir runs/sentences

Measured with seed 0 (docs/results/text.md): strict bound 1.43, 1.35 and 1.31 nats at offsets 1 to
3; c selects the next of two sentences with 91.0 % accuracy (untrained 51.3 %). Trained features
separate movie reviews from newspapers better than untrained features (z: 79.3 against 76.6 %), but
are worse for the sentiment of reviews. A run with all probes takes 6 min 29 s, and 9 min 11 s of
CPU time, on 2 slow, shared cores.
"""

from configs import text


def get_config():
    """Return 2.75 M words of Austen, Melville and presidents, three sentences ahead."""
    c = text.get_config()
    c.eval_every = c.save_every = 500
    c.loss.cosine = True  # the paper: dot products
    c.negatives.temperature = 0.1
    c.optim.learning_rate = 1e-3  # the paper: 2e-4
    return c
