r"""The paper's sentence model (section 3.3) on your own text, such as the BookCorpus.

cpc train --config text_bookcorpus --workdir runs/books \
    --config.data.path=/my/books

Latents and contexts of width 2,400 predict three sentences ahead, with Adam at 2e-4 and 8 x 64
sequences, as on the paper's 8 GPUs, each with its own negatives. The paper gives neither the width
of embeddings and convolution nor the vocabulary size. We use 620 and 20,000, from skip-thought
vectors (Kiros et al. 2015), which the paper follows. Files have one sentence per line, as in the
BookCorpus. A folder of prose needs --config.data.form=prose. Sized for accelerators, and never run
to the end.
"""

from configs import text


def get_config():
    """Return the paper's sizes, dot products, and separate negatives for each device."""
    c = text.get_config()
    c.num_steps = 100_000  # the paper leaves it open
    c.log_every = 100
    c.eval_every = c.save_every = 5000
    c.data.source = "files"
    c.data.form = "lines"
    c.data.min_count = 5
    c.data.test_fraction = 0.01
    c.data.batch_size = 512
    c.model.embedding_width = 620
    c.model.width = 2400
    c.model.context_width = 2400
    c.negatives.shards = 8
    c.optim.learning_rate = 2e-4
    c.probe.features = ("c", "z", "random z", "bag")
    return c
