"""Greedy InfoMax on Fashion-MNIST (Loewe et al. 2019), with a separate loss for each layer.

cpc train --config image_fashion_mnist_greedy --workdir runs/greedy

The paper reports 81.9 % on STL-10 with three modules of a ResNet-50, against 80.5 % for its own CPC
(second-hand). This config is `image_fashion_mnist` with its three convolutions as modules, of which
the last includes the contexts. Measured on 2 CPU cores, 1,000 steps, seed 0: strict bound 1.27
nats; test accuracy of c: linear 88.4 % (untrained 85.9 %, pixels 81.2 %), 20 neighbors 84.6 %
(82.2, 84.6).
"""

from configs import image


def get_config():
    """Return the small network in three modules, each with both directions."""
    c = image.get_config()
    c.model.modules = 3
    return c
