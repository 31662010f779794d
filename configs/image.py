"""Config keys of kind image."""

from configs import defaults
from configs.defaults import MAX_LAYERS, MAX_OFFSETS, MAX_WIDTH
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("image", "kind of data", words=("image",)),
    **defaults.RUN,
    "data": {
        "source": Key(
            "fashion_mnist", "where images come from", words=("fashion_mnist", "folder", "tfds")),
        "path": Key(
            "", "folder, tfds: where the images are", is_path=True, sources=("folder", "tfds")),
        "name": Key("", "tfds: name of the set, such as cifar10, stl10, imagenet2012"),
        "split": Key("train", "split to train on; its labels are not used"),
        "probe_split": Key("train", "split to fit probes on"),
        "test_split": Key(
            "test", "split to measure the bound and the probes on, without an image of the others"),
        "group_level": Key(
            0, "folder: which directory level below path names the group, such as a subject, that "
            "is never split between training and test (1 is the split, 2 the class); 0: no groups",
            low=0, high=100, sources=("folder",)),
        "test_fraction": Key(
            0.15, "folder: fraction of groups to test on, if test_split equals split",
            above=0, below=1, sources=("folder",)),
        "size": Key(28, "side of the images in pixels, after resizing", low=1, high=4096),
        "channels": Key(1, "channels of the images: 1 (gray) or 3", words=(1, 3)),
        **with_defaults(defaults.INPUT, batch_size=128),
    },
    "augment": {  # in training, first of whole images, then of single patches
        "crop": Key(
            0, "side in pixels of a random crop, half of them mirrored; 0: data.size, no crop",
            low=0, high=4096),
        "grey": Key(False, "whether all images lose their colors"),
        "jitter": Key(
            0, "side in pixels of a random part of each patch, padded back to its size; the "
            "paper: 60", low=0, high=4096),
        "color_drop": Key(
            0.0, "probability of dropping a patch's colors; this and the following: CPC v2, 0 for "
            "off", low=0, high=1),
        "rotation_degrees": Key(0.0, "largest rotation of a patch", low=0, high=180),
        "shear": Key(0.0, "largest shear of a patch", low=0),
        "elastic_pixels": Key(0.0, "pixels that an elastic deformation moves points by", low=0),
        "brightness": Key(
            0.0, "largest change of brightness, for pixels from -1 to 1", low=0, high=2),
        "contrast": Key(0.0, "largest change of contrast, as a fraction", low=0, high=1),
    },
    "model": {
        "patch": Key(8, "side of a patch in pixels", low=1, high=4096),
        "stride": Key(
            4, "pixels from one patch to the next; patches of 8 every 4 cut 28 pixels into 6 by 6",
            low=1, high=4096),
        "encoder": Key("small", "encoder of a patch: small, or resnet18, 34, 50, 101, 152, 161"),
        "stages": Key(0, "stages of a ResNet, 0: all; the paper: 3 of ResNet-101", low=0, high=4),
        "pooled_stem": Key(
            False, "whether a ResNet begins with a 7x7 convolution and pooling, for patches of 32 "
            "and more"),
        "width": Key(128, "width of z for the small encoder", low=1, high=MAX_WIDTH),
        "norm": Key(
            "none", "normalization in the encoder", words=("none", "layer", "batch", "group")),
        "context": Key(
            "conv", "context network: masked convolutions, or a gru, over rows",
            words=("conv", "gru")),
        "context_width": Key(128, "width of c", low=1, high=MAX_WIDTH),
        "context_layers": Key(3, "layers of the context network", low=1, high=MAX_LAYERS),
        "directions": Key(
            ("down", "up"), "directions, each with its own context and predictor; the paper: only "
            "down, so that c does not depend on the rows below it, which costs its probe 2 points "
            "(docs/results/images.md)", words=("down", "up", "right", "left")),
        "modules": Key(
            1, "parts with a loss of their own and no gradient between them: groups of stages or "
            "convolutions, with the contexts as one more; 1: the whole network",
            low=1, high=MAX_LAYERS),
        "first_offset": Key(
            0, "smallest offset; 0: the first at which target and context share no pixel", low=0),
        "num_offsets": Key(3, "number of rows ahead that are predicted", low=1, high=MAX_OFFSETS),
        "target_width": Key(
            0, "width of a linear projection of z to predict instead; 0: z itself",
            low=0, high=MAX_WIDTH),
        **defaults.PRECISION,
    },
    "loss": defaults.LOSS,
    # The same position of other images. Rule "batch" does not improve the probe
    # (docs/results/images.md), takes twice the time per step, and log N - L would not be a bound.
    "negatives": with_defaults(defaults.NEGATIVES, rule="one_per_sequence"),
    "optim": with_defaults(defaults.OPTIM, learning_rate=1e-3),
    "evaluate": {
        "num_images": Key(
            512, "held-out images for the bound; 0: no evaluation", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(
            ("linear", "knn", "neighbours", "units"), "probes and figures",
            words=("linear", "knn", "few_labels", "fine_tuned", "supervised", "neighbours", "units")
        ),
        "features": Key(
            ("z", "c", "random z", "random c", "pixels"), "features of the run, of an untrained "
            "network (random) and a baseline", words=("z", "c", "random z", "random c", "pixels")),
        "regions": Key(
            3, "regions per side that the grid's features are pooled into; 1: the mean of all",
            low=1, high=4096),
        "solver": Key(
            "ridge", "solver of the linear probe: logistic regression to convergence (lbfgs) or "
            "by the paper's sgd, or least squares (ridge)", words=("lbfgs", "ridge", "sgd")),
        "num_images": Key(0, "labeled images that probes are fitted on; 0: all", low=0, high=2**30),
        "num_neighbours": Key(20, "knn: number of neighbors", low=1),
        "fractions": Key(
            (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0), "few_labels: fractions of the labels",
            above=0, high=1),
        "num_subsets": Key(
            3, "few_labels: random subsets for each fraction; 1: no intervals", low=1, high=1000),
        "num_epochs": Key(10, "epochs of fine_tuned, and maximum of supervised", low=1, high=10**6),
        "layer_decay": Key(
            1.0, "fine_tuned: factor of the learning rate from each layer to the one below",
            above=0, high=1),
        "every": defaults.EVERY,
    },
}  # fmt: skip


def get_config():
    """Return the defaults."""
    return make_config(KEYS)
