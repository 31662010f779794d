r"""Contrastive predictive coding on text: sentences that predict the next ones.

Trains, watches the information, probes the frozen features and writes a report:

    python -m experiments.text --config configs/text_sentences.py --workdir runs/sentences
    python -m experiments.text --config configs/text_bookcorpus.py --workdir runs/mine \
        --config.data.path=/my/books

`cpc text --keys [SECTION]` lists the keys of a config; any can be set, and the same command again
resumes:

    python -m experiments.text --config configs/text_sentences.py --workdir runs/low \
        --config.optim.learning_rate=2e-4

Or of words, by any objective from maximum likelihood to InfoNCE (keys: configs/words.py):

    python -m experiments.text --config configs/text_words.py --workdir runs/words
"""

from experiments.run import main
from experiments.text.modality import TEXT
from experiments.words import run as words

if __name__ == "__main__":
    main(TEXT, {"words": words.run})
