r"""CIFAR-10 with a ResNet-18 without pooling on 8-pixel color patches of 32-pixel images.

cpc train --config image_cifar10 --workdir runs/cifar10 \
    --config.data.path=$HOME/tensorflow_datasets

Prepare the data once with `tfds build cifar10 --file_format=array_record`. Sized for a GPU. Results
have not been measured, because the dataset was not available.
"""

from configs import image


def get_config():
    """Return patch augmentation as in CPC v2, with two directions."""
    c = image.get_config()
    c.num_steps = 40_000
    c.log_every = 100
    c.eval_every = c.save_every = 4000
    c.data.source = "tfds"
    c.data.name = "cifar10"
    c.data.size = 32
    c.data.channels = 3
    c.data.num_threads = 4
    c.augment.crop = 32
    c.augment.color_drop = 0.25
    c.augment.brightness = 0.2
    c.augment.contrast = 0.2
    c.model.encoder = "resnet18"
    c.model.stages = 3
    c.model.norm = "layer"
    c.model.context_width = 256
    c.model.num_offsets = 4
    c.negatives.rule = "batch"
    c.optim.learning_rate = 4e-4
    c.probe.solver = "lbfgs"
    return c
