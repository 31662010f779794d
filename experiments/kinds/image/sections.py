"""What only runs on images show on their page: neighbors, units, augmentation, the paper."""

from cpc.files import read_arrays
from cpc.report.engine import Figure, Section, Table
from cpc.report.words import Words
from cpc.results import Run
from cpc.types import UserError
from experiments.kinds.paper import IMAGENET, IMAGENET_SOURCE

WORDS = Words(
    examples="images",
    sequence="image",
    target="patch",
    near="a patch close by",
    ahead="rows ahead",
    tested="images",
    features=("z", "c"),  # the paper's probe of images is on the encoder's output
    baselines=("pixels",),
    titles={"pixels": "raw pixels"},
)
#: By file under probes/: title and caption of its figure.
CAPTIONS = {
    "neighbours": (
        "Nearest neighbors",
        "Left: test images. To the right: the labeled images whose z, pooled over the grid, is "
        "most similar by cosine, nearest first. Green: same class; red: the class named.",
    ),
    "units": (
        "Patches that excite a unit most (the paper's Figure 5)",
        "Each row is one dimension of z and the patches of test images at which it is largest, "
        "strongest first. A unit that has learned something responds to one kind of thing.",
    ),
    "augmented": (
        "Patches as training sees them",
        "The overlapping patches of some training images, side by side: above without and below "
        "with the augmentation used in training. If a person can no longer recognize them, it is "
        "too strong.",
    ),
}


def paper_section(run: Run) -> Section | None:
    """Return the paper's probes of ImageNet, and what of them can be compared."""
    if not len(run.scores):
        return None
    note = (
        "The paper probes features of ImageNet, so absolute values are not comparable with those "
        "of other images, but the order is: above the untrained network and above raw pixels, and "
        "more so with few labels. CPC v2 reaches the accuracy of a network trained from pixels "
        "with 2 to 5 times fewer labels."
    )
    return Section("Beside the paper", [note], details=[imagenet_table()])


def images_section(run: Run) -> Section:
    """Return neighbors, units and augmentation as images, and which of them are missing."""
    from experiments.kinds.image.figures import DRAW  # seconds, for which no training waits

    figures, problems, absent = [], [], []
    for name, (title, caption) in CAPTIONS.items():
        path = run.workdir / "probes" / f"{name}.npz"
        if not path.exists():
            absent.append(f"probes/{name}.npz")
            continue
        try:
            arrays = read_arrays(path)
        except UserError as error:
            problems.append(f"A figure is left out: {error}; fit the probes again.")
            continue
        figures.append(Figure(name, DRAW[name](arrays), title, caption))
    if absent:
        problems.append(
            f"Not recorded yet: {', '.join(absent)}; the probe command on this directory adds "
            "what its config asks for."
        )
    return Section("Images", problems, figures)


def imagenet_table() -> Table:
    """Return the paper's probes of images."""
    import pandas as pd

    rows = pd.DataFrame(IMAGENET, columns=["method", "network", "top-1, %", "top-5, %"])
    strong = [number for number, row in enumerate(IMAGENET) if row[0].startswith("CPC")]
    return Table(
        "The paper's linear probes of ImageNet",
        rows,
        f"{IMAGENET_SOURCE}. A dash is not given.",
        {"top-1, %": ".1f", "top-5, %": ".1f"},
        strong,
    )


SECTIONS = (paper_section, images_section)
