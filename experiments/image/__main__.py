r"""Contrastive predictive coding on images (van den Oord et al. 2018, section 3.2; CPC v2, 2019).

Trains, watches the information, probes the frozen features and writes a report:

    cpc image --config image_fashion_mnist --workdir runs/fashion

`cpc image --keys [SECTION]` lists the keys of a config; any can be set, and the same command again
resumes:

    cpc image --config image_fashion_mnist --workdir runs/low \
        --config.optim.learning_rate=1e-4
"""

from experiments.image.modality import IMAGE
from experiments.run import main

if __name__ == "__main__":
    main(IMAGE)
