"""Config keys of kind image."""

from configs import defaults
from configs.defaults import MAX_LAYERS, MAX_OFFSETS, MAX_WIDTH
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("image", "kind of data", words=("image",)),
    **defaults.RUN,
    **defaults.START,
    "data": {
        "source": Key(
            "fashion_mnist", "where images come from", words=("fashion_mnist", "folder", "tfds")),
        "path": Key(
            "", "folder, tfds: path of the images", is_path=True, sources=("folder", "tfds")),
        "name": Key("", "tfds: name of the data set, such as cifar10, stl10 or imagenet2012"),
        "split": Key("train", "split to train on, without its labels"),
        "probe_split": Key("train", "split to fit probes on"),
        "test_split": Key("test", "split to test on, without images of the other splits"),
        "group_level": Key(
            0, "folder: directory level (1 is the split, 2 the class) of groups, such as subjects, "
            "to keep within training or test, or 0 for none", low=0, high=100, sources=("folder",)),
        "test_fraction": Key(
            0.15, "folder: fraction of groups to test on if test_split equals split",
            above=0, below=1, sources=("folder",)),
        "size": Key(28, "side of the images in pixels, after resizing", low=1, high=4096),
        "channels": Key(1, "number of image channels, 1 (gray) or 3", words=(1, 3)),
        **with_defaults(defaults.INPUT, batch_size=128),
    },
    "augment": {  # in training, first of whole images, then of single patches
        "crop": Key(
            0, "side of random crops, half of them mirrored, or 0 for none", low=0, high=4096),
        "grey": Key(False, "whether to convert all images to gray"),
        "jitter": Key(
            0, "side of a random crop of each patch, padded back, or 0 for none (paper: 60)",
            low=0, high=4096),
        # As in CPC v2.
        "color_drop": Key(0.0, "probability of converting a patch to gray", low=0, high=1),
        "rotation_degrees": Key(0.0, "largest rotation of a patch in degrees", low=0, high=180),
        "shear": Key(0.0, "largest shear of a patch", low=0),
        "elastic_pixels": Key(0.0, "displacement of an elastic deformation in pixels", low=0),
        "brightness": Key(0.0, "largest change of pixels, which are -1 to 1", low=0, high=2),
        "contrast": Key(0.0, "largest relative change in contrast", low=0, high=1),
    },
    "model": {
        "patch": Key(8, "side of a patch in pixels", low=1, high=4096),
        "stride": Key(
            4, "stride of the patches in pixels; patches of 8 with stride 4 give a 6x6 grid on 28",
            low=1, high=4096),
        "encoder": Key("small", "encoder of a patch: small, or resnet18, 34, 50, 101, 152 or 161"),
        "stages": Key(
            0, "number of ResNet stages, such as 3 in the paper, or 0 for all", low=0, high=4),
        "pooled_stem": Key(
            False, "whether a ResNet begins with 7x7 convolution and pooling (32 pixels or more)"),
        "width": Key(128, "width of z for the small encoder", low=1, high=MAX_WIDTH),
        "norm": Key(
            "none", "normalization in the encoder", words=("none", "layer", "batch", "group")),
        "context": Key(
            "conv", "context network over rows: masked convolutions (conv) or a GRU (gru)",
            words=("conv", "gru")),
        "context_width": Key(128, "width of c", low=1, high=MAX_WIDTH),
        "context_layers": Key(
            3, "number of layers in the context network", low=1, high=MAX_LAYERS),
        "directions": Key(
            ("down", "up"), "directions, each with its own context network and predictor; the "
            "paper's choice, down, costs c's probe 2 points (docs/results/images.md)",
            words=("down", "up", "right", "left")),
        "modules": Key(
            1, "number of modules (groups of stages, contexts) with separate losses and no "
            "gradient between them; 1 is the whole network", low=1, high=MAX_LAYERS),
        "first_offset": Key(
            0, "smallest offset, or 0 for the first without pixels in both target and context",
            low=0),
        "num_offsets": Key(3, "number of rows ahead to predict", low=1, high=MAX_OFFSETS),
        "target_width": Key(
            0, "width of the predicted projection of z, or 0 to predict z", low=0, high=MAX_WIDTH),
        **defaults.PRECISION,
    },
    "loss": defaults.LOSS,
    # Negatives are latents at the same position in other images. Rule "batch" does not improve the
    # probe (docs/results/images.md) and doubles the step time, and log N - L would not be a bound.
    "negatives": with_defaults(defaults.NEGATIVES, rule="one_per_sequence"),
    "optim": with_defaults(defaults.OPTIM, learning_rate=1e-3),
    "evaluate": {
        "num_images": Key(
            512, "number of held-out images for the bound, or 0 for none", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(
            ("linear", "knn", "neighbours", "units"), "probes to fit and figures to draw", words=(
                "linear", "knn", "few_labels", "fine_tuned", "supervised", "neighbours", "units")),
        "features": Key(
            ("z", "c", "random z", "random c", "pixels"), "features of the run, of an untrained "
            "network (random) and a baseline", words=("z", "c", "random z", "random c", "pixels")),
        "regions": Key(
            3, "number of regions per side for pooling features of the grid, or 1 for their mean",
            low=1, high=4096),
        "solver": Key(
            "ridge", "solver of the linear probe: logistic regression to convergence (lbfgs) or "
            "by the paper's SGD (sgd), or least squares (ridge)", words=("lbfgs", "ridge", "sgd")),
        "num_images": Key(
            0, "number of labeled images to fit probes on, or 0 for all", low=0, high=2**30),
        "num_neighbours": Key(20, "knn: number of neighbors", low=1),
        "fractions": Key(
            (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0), "few_labels: fractions of the labels",
            above=0, high=1),
        "num_subsets": Key(
            3, "few_labels: subsets per fraction, or 1 for no intervals", low=1, high=1000),
        "num_epochs": Key(
            10, "fine_tuned: number of epochs; supervised: maximum number", low=1, high=10**6),
        "layer_decay": Key(
            1.0, "fine_tuned: decay factor of the learning rate from each layer to the one below",
            above=0, high=1),
        "every": defaults.EVERY,
    },
}  # fmt: skip


def get_config():
    """Return the defaults."""
    return make_config(KEYS)
