"""Config keys of kind series."""

from configs import defaults
from configs.defaults import MAX_LAYERS, MAX_OFFSETS, MAX_WIDTH
from configs.keys import Key, make_config, with_defaults

KEYS = {
    "kind": Key("series", "kind of data", words=("series",)),
    **defaults.RUN,
    **defaults.START,
    "data": {
        "source": Key(
            "ar1", "source of the data: files, or synthetic AR(1) processes as channels (ar1)",
            words=("files", "ar1")),
        "path": Key(
            "", "files: a file, or a folder with files at any depth",
            is_path=True, sources=("files",)),
        "channels": Key(
            1, "number of channels; files with another number are skipped", low=1, high=MAX_WIDTH),
        "rate_hz": Key(
            0.0, "number of steps per second, for the times of features, or 0 if unknown", low=0),
        "standardize": Key(
            True, "whether each channel of a file is scaled to mean 0 and standard deviation 1"),
        "step_label": Key(
            "", "column (csv, parquet) or array (npz) of labels per step", sources=("files",)),
        "file_label": Key(
            "none", "label of a file: none, its folder's name, or from file_labels (table)",
            words=("none", "folder", "table")),
        "file_labels": Key(
            "", "table: csv file with lines name,label, where names may omit the file ending",
            is_path=True, sources=("files",)),
        "group_level": Key(
            0, "files: directory level below path of groups, such as subjects, to keep within "
            "training or test, or 0 for single files", low=0, high=100, sources=("files",)),
        "train_list": Key(
            "", "list of training files or folders, one per line; without lists, groups are drawn "
            "at random", is_path=True, sources=("files",)),
        "test_list": Key(
            "", "list of test files or folders, one per line", is_path=True, sources=("files",)),
        "test_fraction": Key(
            0.15, "fraction of groups to test on; a single file is tested on its last part",
            above=0, below=1),
        "window_steps": Key(128, "length of a training sequence", low=1, high=2**26),
        "correlation": Key(0.9, "ar1: correlation of successive steps", above=-1, below=1),
        "num_files": Key(4000, "ar1: number of sequences of window_steps", low=2, high=10**7),
        **with_defaults(defaults.INPUT, batch_size=32),
    },
    "model": {
        "kernels": Key((1,), "kernel size of each layer of the encoder", low=1, high=MAX_WIDTH),
        "strides": Key((1,), "stride of each layer of the encoder", low=1, high=MAX_WIDTH),
        "width": Key(64, "width of z", low=1, high=MAX_WIDTH),
        "norm": Key(
            "none", "normalization in the encoder",
            words=("none", "layer", "channel", "batch", "group")),
        "padding": Key("causal", "padding in the encoder", words=("causal", "same", "valid")),
        "context": Key(
            "gru", "context network", words=("gru", "lstm", "conv", "transformer", "ssm")),
        "context_width": Key(64, "width of c", low=1, high=MAX_WIDTH),
        "context_layers": Key(
            1, "number of layers in the context network", low=1, high=MAX_LAYERS),
        "num_offsets": Key(8, "number of latents ahead to predict", low=1, high=MAX_OFFSETS),
        **defaults.PRECISION,
    },
    "loss": defaults.LOSS,
    "negatives": {
        **defaults.NEGATIVES,
        "rule": Key(
            "auto", "rule that admits latents of the batch as negatives; auto selects own_sequence "
            "for files from few groups, otherwise batch",
            words=("auto", *defaults.NEGATIVES["rule"].words)),
        "overlap": Key(False, "whether overlapping windows may have negatives in each other"),
    },
    "optim": defaults.OPTIM,
    "evaluate": {
        "num_windows": Key(
            256, "number of held-out windows for the bound, or 0 for none", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(("steps",), "labels to predict from features", words=("steps", "files")),
        "features": Key(
            ("c", "z", "raw", "random c"), "features of the run, of an untrained network (random), "
            "and the input itself (raw)", words=("c", "z", "raw", "random c", "random z")),
        "leave_one_out": Key(
            False, "whether probes are also tested on each group after fitting on all others; the "
            "network is trained only on the training groups"),
        **defaults.PROBE,
    },
}  # fmt: skip


def get_config():
    """Return the defaults."""
    return make_config(KEYS)
