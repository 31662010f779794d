r"""STL-10 as Greedy InfoMax trains it (Löwe et al. 2019, one module): the best public CPC baseline.

cpc train --config image_stl10 --workdir runs/stl10 \
    --config.data.path=$HOME/tensorflow_datasets

Grey crops of 64 pixels, a 7x7 grid of 16-pixel patches, ResNet-50, 16 negatives, 300 epochs in
batches of 32 over the 105,000 training and unlabelled images. The paper: 80.5 % linear probe
accuracy on the test set. Prepare the data once with `tfds build stl10 --file_format=array_record`.
For a GPU; not measured here, because the dataset was not available.
"""

from configs import image


def get_config():
    """Their setting; their 5 rows are offsets 2 to 6 here, as offset 1 shares pixels."""
    c = image.get_config()
    c.num_steps, c.log_every = 300 * 105_000 // 32, 100
    c.eval_every = c.save_every = 10_000
    c.data.source, c.data.name = "tfds", "stl10"
    c.data.split = "unlabelled+train"
    c.data.size, c.data.channels = 96, 3
    c.data.batch_size, c.data.num_threads = 32, 8
    c.augment.crop, c.augment.grey = 64, True
    c.model.patch, c.model.stride = 16, 8
    c.model.encoder, c.model.stages = "resnet50", 3
    c.model.context_width, c.model.context_layers = 256, 5
    c.model.num_offsets = 5
    c.model.directions = ("down",)
    c.negatives.rule, c.negatives.num_sampled = "batch", 16
    c.optim.learning_rate, c.optim.schedule = 2e-4, "constant"
    c.optim.warmup_steps = 0
    c.probe.regions, c.probe.solver = 1, "lbfgs"
    return c
