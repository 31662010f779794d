"""Fashion-MNIST with a wider network and longer training, for a GPU.

cpc train --config image_fashion_mnist_long --workdir runs/fashion_long

A step takes 18.9 ms on one H100, so training takes 7.4 minutes (docs/results/speed.md). It has not
been trained, so no accuracy is given.
"""

from configs import image


def get_config():
    """Return four directions, 512 images per step, 200 epochs, and all probes."""
    c = image.get_config()
    c.num_steps = 200 * 60_000 // 512
    c.log_every = 100
    c.eval_every = c.save_every = 2000
    c.data.batch_size = 512
    c.model.width = 256
    c.model.context_width = 256
    c.model.context_layers = 5
    c.model.directions = ("down", "up", "right", "left")
    c.probe.tasks = image.KEYS["probe"]["tasks"].words
    c.probe.solver = "lbfgs"
    c.probe.num_epochs = 30
    return c
