r"""ImageNet as in CPC v2 (Hénaff et al. 2019), the strongest published form.

cpc train --config image_imagenet_v2 --workdir runs/imagenet_v2 \
    --config.data.path=$HOME/tensorflow_datasets

Trains a widened ResNet-161 with layer norm on 6x6 patches of 80 pixels from a 260-pixel crop, with
four directions, targets of 64 dimensions, and patch augmentation. The paper reports 71.5 % top-1
for a linear probe of mean-pooled z. Prepare the data once, from image-net.org's archives, with
`tfds build imagenet2012 --file_format=array_record`. Sized for a pod. Results have not been
measured, because the dataset was not available.
"""

from configs import image_imagenet


def get_config():
    """Return the published settings, except that we choose the strengths of the augmentation."""
    c = image_imagenet.get_config()
    c.augment.crop = 260
    c.augment.grey = False
    c.augment.jitter = 0
    c.augment.color_drop = 0.25
    c.augment.rotation_degrees = 15.0
    c.augment.shear = 0.2
    c.augment.elastic_pixels = 2.0
    c.augment.brightness = 0.3
    c.augment.contrast = 0.3
    c.model.patch = 80
    c.model.stride = 36
    c.model.encoder = "resnet161"
    c.model.stages = 0
    c.model.norm = "layer"
    c.model.directions = ("down", "up", "right", "left")
    c.model.num_offsets = 3  # offsets 3 to 5, without the two that share pixels
    c.model.target_width = 64
    c.negatives.shards = 1
    c.optim.learning_rate = 4e-4
    return c
