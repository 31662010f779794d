r"""STL-10 as Greedy InfoMax trains it (Löwe et al. 2019, one module): the best public CPC baseline.

cpc train --config image_stl10 --workdir runs/stl10 \
    --config.data.path=$HOME/tensorflow_datasets

Trains a ResNet-50 on grey crops of 64 pixels, in a 7x7 grid of 16-pixel patches, with 16 negatives,
for 300 epochs of the 105,000 training and unlabelled images in batches of 32. The paper reports a
linear probe accuracy of 80.5 % on the test set. Prepare the data once with
`tfds build stl10 --file_format=array_record`. Sized for a GPU. Results have not been measured,
because the dataset was not available.
"""

from configs import image


def get_config():
    """Return the paper's settings, where 5 rows are offsets 2 to 6, as offset 1 shares pixels."""
    c = image.get_config()
    c.num_steps = 300 * 105_000 // 32
    c.log_every = 100
    c.eval_every = c.save_every = 10_000
    c.data.source = "tfds"
    c.data.name = "stl10"
    c.data.split = "unlabelled+train"
    c.data.size = 96
    c.data.channels = 3
    c.data.batch_size = 32
    c.data.num_threads = 8
    c.augment.crop = 64
    c.augment.grey = True
    c.model.patch = 16
    c.model.stride = 8
    c.model.encoder = "resnet50"
    c.model.stages = 3
    c.model.context_width = 256
    c.model.context_layers = 5
    c.model.num_offsets = 5
    c.model.directions = ("down",)
    c.negatives.rule = "batch"
    c.negatives.num_sampled = 16
    c.optim.learning_rate = 2e-4
    c.optim.schedule = "constant"
    c.optim.warmup_steps = 0
    c.probe.regions = 1
    c.probe.solver = "lbfgs"
    return c
