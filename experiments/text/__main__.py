r"""Contrastive predictive coding on text: sentences that predict the next ones.

Trains, watches the information, probes the frozen features and writes a report:

    cpc text --config text_sentences --workdir runs/sentences
    cpc text --config text_bookcorpus --workdir runs/mine \
        --config.data.path=/my/books

`cpc text --keys [SECTION]` lists the keys of a config; any can be set, and the same command again
resumes:

    cpc text --config text_sentences --workdir runs/low \
        --config.optim.learning_rate=2e-4

Or of words, by any objective from maximum likelihood to InfoNCE (keys: configs/words.py):

    cpc text --config text_words --workdir runs/words
"""

from experiments.run import main
from experiments.text.modality import TEXT
from experiments.words import run as words

if __name__ == "__main__":
    main(TEXT, {"words": words.run})
