"""CPC on Fashion-MNIST, from its Debian package: patches, rows for time, a linear probe.

python -m experiments.image --config configs/image_fashion_mnist.py --workdir runs/fashion
python -m experiments.probe --workdir runs/fashion --task few_labels

13 min 20 s to the probes on 2 CPU cores, 8 of them training. Linear (ridge) probe on c, 10,000 test
pictures: 89.4 % (untrained 85.9, raw pixels 81.2). How the settings were found: docs/images.md.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import defaults


def get_config() -> Any:
    """Every key that an image experiment knows, with the demo's values."""
    c: Any = ConfigDict()
    c.seed = 0
    c.num_steps = 1000
    c.steps_per_launch = 1  # steps that the device does without the host
    c.log_every = 50
    c.eval_every = 250
    c.save_every = 250

    c.data = ConfigDict()
    c.data.source = "fashion_mnist"  # fashion_mnist, folder or tfds
    c.data.path = ""  # of folder and tfds
    c.data.name = ""  # of the set, for tfds: cifar10, stl10, imagenet2012, ...
    c.data.split = "train"  # to train on; labels are not used
    c.data.probe_split = "train"  # to fit probes on
    c.data.test_split = "test"  # to measure the bound and the probes on
    c.data.size = 28  # pixels a side to which pictures are brought
    c.data.channels = 1  # 1 (grey) or 3
    c.data.batch_size = 128  # pictures of the global batch, on however many devices
    c.data.num_threads = 2
    c.data.max_skipped_fraction = 0.1  # more unreadable files than that are an error

    c.augment = ConfigDict()  # in training; of whole pictures, then of each patch by itself
    c.augment.crop = 28  # pixels a side of a random crop, half of them mirrored
    c.augment.grey = False
    c.augment.jitter = 0  # pixels a side of a random part of each patch, padded back; the paper: 60
    c.augment.colour_drop = 0.0  # probability; this and the rest: CPC v2, 0 for off
    c.augment.rotation_degrees = 0.0
    c.augment.shear = 0.0
    c.augment.elastic_pixels = 0.0
    c.augment.brightness = 0.0
    c.augment.contrast = 0.0

    c.model = ConfigDict()
    c.model.patch = 8  # pixels a side
    c.model.stride = 4  # pixels between patches: 8 and 4 cut 28 pixels into 6 by 6
    c.model.encoder = "small"  # or resnet18, 34, 50, 101, 152, 161
    c.model.stages = 0  # of a ResNet, 0: all; the paper: 3 of 101
    c.model.pooled_stem = False  # of a ResNet: 7x7 and pooling first, for patches of 32 and more
    c.model.width = 128  # of the small encoder's z
    c.model.norm = "none"  # none, layer, batch or group
    c.model.context = "conv"  # masked convolutions over rows, or gru
    c.model.context_width = 128
    c.model.context_layers = 3
    # Of down, up, right, left: each its own context and predictor. With down alone, as in the
    # paper, c knows nothing of the rows below it, and its probe loses 2 points (docs/images.md).
    c.model.directions = ("down", "up")
    c.model.first_offset = 0  # 0: the first at which target and context share no pixel
    c.model.num_offsets = 3
    c.model.target_width = 0  # of a linear projection of z that is predicted; 0: z itself
    c.model.remat = False  # compute a ResNet's blocks again for the gradient: less memory
    c.model.dtype = "float32"  # of the computation; parameters and loss are always float32

    c.loss = defaults.loss()
    c.negatives = defaults.negatives()
    # The same place of other pictures. All of the batch gives the probe no more (docs/images.md),
    # at twice the time a step, and log N - L would be no bound.
    c.negatives.rule = "one_per_sequence"
    c.optim = defaults.optim()
    c.optim.learning_rate = 1e-3

    c.evaluate = ConfigDict()
    c.evaluate.num_images = 512  # held-out pictures for the bound

    c.probe = ConfigDict()
    # linear, knn, few_labels, fine_tuned, supervised, neighbours, units
    c.probe.tasks = ("linear", "knn", "neighbours", "units")
    c.probe.features = ("z", "c", "random z", "random c", "pixels")
    c.probe.regions = 3  # a side, into which the grid's features are pooled: 1 is the mean of all
    c.probe.solver = "ridge"  # lbfgs (multinomial), ridge (closed form) or the paper's sgd
    c.probe.num_images = 0  # labelled pictures that probes are fitted on; 0: all
    c.probe.num_neighbours = 20
    c.probe.fractions = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the labels
    c.probe.num_subsets = 3  # of each fraction
    c.probe.num_epochs = 10  # of fine_tuned and supervised
    c.probe.every = 0  # steps; 0: once, at the end
    return c
