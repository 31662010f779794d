r"""ImageNet as in section 3.2 of van den Oord et al. (2018), Tables 3 and 4.

cpc train --config image_imagenet --workdir runs/imagenet \
    --config.data.path=$HOME/tensorflow_datasets

Trains on grey crops of 256 from 300 pixels, in 7x7 patches of 64 (random crops of 60, padded back),
with the first three stages of ResNet-101 without norm, on 32 devices with 16 images each. The paper
reports 48.7 % top-1 and 73.6 % top-5 for a linear probe of mean-pooled z. Prepare the data once,
from image-net.org's archives, with `tfds build imagenet2012 --file_format=array_record`. Sized for
a pod. Results have not been measured, because the dataset was not available.
"""

from configs import image


def get_config():
    """Return the paper's settings, with a mark at values that the paper leaves open."""
    c = image.get_config()
    c.num_steps = 300_000  # open
    c.log_every = 100
    c.eval_every = c.save_every = 10_000
    c.data.source = "tfds"
    c.data.name = "imagenet2012"
    c.data.test_split = "validation"
    c.data.size = 300
    c.data.channels = 3
    c.data.batch_size = 512
    c.data.num_threads = 32
    c.augment.crop = 256
    c.augment.grey = True
    c.augment.jitter = 60
    c.model.patch = 64
    c.model.stride = 32
    c.model.encoder = "resnet101"
    c.model.stages = 3
    c.model.pooled_stem = True
    c.model.context_width = 1024  # open
    c.model.context_layers = 5  # open
    c.model.directions = ("down",)
    c.model.num_offsets = 5  # up to five rows: 2 to 6, as offset 1 shares pixels
    c.model.remat = True
    c.model.dtype = "bfloat16"
    c.negatives.rule = "batch"
    c.negatives.shards = 32
    c.optim.learning_rate = 2e-4
    c.optim.schedule = "constant"  # open
    c.optim.warmup_steps = 1000  # open
    c.evaluate.num_images = 2048
    c.probe.regions = 1
    c.probe.solver = "sgd"
    c.probe.features = ("z", "random z")
    return c
