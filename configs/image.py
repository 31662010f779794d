"""Every key of configs of kind image."""

from typing import Any

from configs.defaults import (
    EVERY,
    INPUT,
    LOSS,
    MOST_LAYERS,
    MOST_OFFSETS,
    NEGATIVES,
    OPTIM,
    PRECISION,
    RUN,
    WIDEST,
)
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("image", "of data", words=("image",)),
    **RUN,
    "data": {
        "source": Key(
            "fashion_mnist", "where images come from", words=("fashion_mnist", "folder", "tfds")
        ),
        "path": Key("", "folder, tfds: where they are", is_path=True),
        "name": Key("", "tfds: of the set, such as cifar10, stl10, imagenet2012"),
        "split": Key("train", "to train on; labels are not used"),
        "probe_split": Key("train", "to fit probes on"),
        "test_split": Key("test", "to measure the bound and the probes on"),
        "size": Key(28, "pixels a side to which images are brought", low=1, high=4096),
        "channels": Key(1, "1 (grey) or 3", words=(1, 3)),
        **with_defaults(INPUT, batch_size=128),
    },
    "augment": {  # in training; of whole images, then of each patch by itself
        "crop": Key(28, "pixels a side of a random crop, half of them mirrored", low=1, high=4096),
        "grey": Key(False, "whether colors are dropped from all images"),
        "jitter": Key(
            0, "pixels a side of a random part of each patch, padded back; the paper: 60",
            low=0, high=4096,
        ),
        "color_drop": Key(
            0.0, "probability; this and the rest: CPC v2, 0 for off", low=0, high=1
        ),
        "rotation_degrees": Key(0.0, "most that a patch is turned", low=0, high=180),
        "shear": Key(0.0, "most that a patch is sheared", low=0),
        "elastic_pixels": Key(0.0, "by which pixels are moved", low=0),
        "brightness": Key(0.0, "most by which it changes, of pixels from -1 to 1", low=0, high=2),
        "contrast": Key(0.0, "most by which it changes, as a fraction", low=0, high=1),
    },
    "model": {
        "patch": Key(8, "pixels a side", low=1, high=4096),
        "stride": Key(
            4, "pixels between patches: 8 and 4 cut 28 pixels into 6 by 6", low=1, high=4096
        ),
        "encoder": Key("small", "or resnet18, 34, 50, 101, 152, 161"),
        "stages": Key(0, "of a ResNet, 0: all; the paper: 3 of 101", low=0, high=4),
        "pooled_stem": Key(
            False, "of a ResNet: 7x7 and pooling first, for patches of 32 and more"
        ),
        "width": Key(128, "of the small encoder's z", low=1, high=WIDEST),
        "norm": Key("none", "of the encoder", words=("none", "layer", "batch", "group")),
        "context": Key("conv", "masked convolutions over rows, or gru", words=("conv", "gru")),
        "context_width": Key(128, "of c", low=1, high=WIDEST),
        "context_layers": Key(3, "of the context network", low=1, high=MOST_LAYERS),
        "directions": Key(
            ("down", "up"),
            "each with a context and predictor of its own; the paper: down alone, by which c "
            "knows nothing of the rows below it, and its probe loses 2 points (docs/images.md)",
            words=("down", "up", "right", "left"),
        ),
        "modules": Key(
            1,
            "that each have a loss of their own and give no gradient to those below: of stages or "
            "convolutions, the contexts one more; 1: the network as a whole",
            low=1,
            high=MOST_LAYERS,
        ),
        "first_offset": Key(
            0, "0: the first at which target and context share no pixel", low=0
        ),
        "num_offsets": Key(3, "rows ahead that are predicted", low=1, high=MOST_OFFSETS),
        "target_width": Key(
            0, "of a linear projection of z that is predicted; 0: z itself", low=0, high=WIDEST
        ),
        **PRECISION,
    },
    "loss": LOSS,
    # The same place of other images. All of the batch gives the probe no more (docs/images.md), at
    # twice the time a step, and log N - L would be no bound.
    "negatives": with_defaults(NEGATIVES, rule="one_per_sequence"),
    "optim": with_defaults(OPTIM, learning_rate=1e-3),
    "evaluate": {
        "num_images": Key(
            512, "held-out images for the bound; 0: no evaluation", low=0, high=2**30
        ),
    },
    "probe": {
        "tasks": Key(
            ("linear", "knn", "neighbours", "units"),
            "what is fitted and drawn",
            words=(
                "linear", "knn", "few_labels", "fine_tuned", "supervised", "neighbours", "units",
            ),
        ),
        "features": Key(
            ("z", "c", "random z", "random c", "pixels"),
            "of the run, of an untrained network, and a baseline",
            words=("z", "c", "random z", "random c", "pixels"),
        ),
        "regions": Key(
            3, "a side, into which the grid's features are pooled: 1 is the mean of all",
            low=1, high=4096,
        ),
        "solver": Key(
            "ridge",
            "of linear: multinomial (lbfgs), in closed form (ridge) or the paper's sgd",
            words=("lbfgs", "ridge", "sgd"),
        ),
        "num_images": Key(
            0, "labelled images that probes are fitted on; 0: all", low=0, high=2**30
        ),
        "num_neighbours": Key(20, "of knn", low=1),
        "fractions": Key(
            (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0), "of the labels, for few_labels", above=0, high=1
        ),
        "num_subsets": Key(3, "of each fraction", low=1, high=1000),
        "num_epochs": Key(10, "of fine_tuned; of supervised at most", low=1, high=10**6),
        "layer_decay": Key(
            1.0, "fine_tuned: of the learning rate from a layer to the one below", above=0, high=1
        ),
        "every": EVERY,
    },
}  # fmt: skip


def get_config() -> Any:
    """Return the defaults."""
    return make_config(KEYS)
