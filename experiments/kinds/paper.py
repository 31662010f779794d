"""Published results that runs are compared with.

van den Oord, Li, Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018,
arXiv 1807.03748. All accuracies are in percent. Audio accuracies are per frame on LibriSpeech-100h;
image accuracies are on ImageNet.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """A published probe accuracy on one type of features."""

    features: str
    probe: str
    label: str
    accuracy: float


SOURCE = "van den Oord, Li, Vinyals 2018, Table 1 and text of section 3.1 (LibriSpeech-100h)"

NUM_CLASSES = {"phones": 41, "speakers": 251}

TABLE_1 = {
    "phones": (
        Entry("random c", "linear", "random initialization", 27.6),
        Entry("mfcc", "linear", "MFCC", 39.7),
        Entry("c", "linear", "CPC", 64.6),
        Entry("c", "hidden", "CPC, one hidden layer", 72.5),
        Entry("supervised", "linear", "supervised, same architecture", 74.6),
    ),
    "speakers": (
        Entry("random c", "linear", "random initialization", 1.87),
        Entry("mfcc", "linear", "MFCC", 17.6),
        Entry("c", "linear", "CPC", 97.4),
        Entry("supervised", "linear", "supervised, same architecture", 98.5),
    ),
}

#: Phone accuracy of a linear probe on c by number of predicted steps, for mixed-speaker negatives.
TABLE_2_STEPS = {2: 28.5, 4: 57.6, 8: 63.6, 12: 64.6, 16: 63.8}

#: Phone accuracy of a linear probe on c by source of negatives, for 12 predicted steps.
TABLE_2_NEGATIVES = {
    "mixed speaker": 64.6,
    "same speaker": 65.5,
    "mixed speaker (excl.)": 57.3,
    "same speaker (excl.)": 64.6,
    "current sequence only": 65.2,
}


IMAGENET_SOURCE = (
    "van den Oord, Li, Vinyals 2018, Tables 3 and 4 (ImageNet); CPC v2: Hénaff et al. 2019"
)

#: Method, network, and top-1 and top-5 accuracies of a linear probe.
IMAGENET: tuple[tuple[str, str, float | None, float | None], ...] = (
    ("Motion segmentation", "ResNet-v2-101", 27.6, 48.3),
    ("Exemplar", "ResNet-v2-101", 31.5, 53.1),
    ("Relative position", "ResNet-v2-101", 36.2, 59.2),
    ("Colorization", "ResNet-v2-101", 39.6, 62.5),
    ("The four combined", "ResNet-v2-101", None, 69.3),
    ("CPC", "ResNet-v2-101", 48.7, 73.6),
    ("CPC v2", "ResNet-50", 63.8, 85.3),
    ("CPC v2", "ResNet-161", 71.5, 90.1),
)

#: Transfer accuracies of sentence features from the BookCorpus. Missing entries were not reported.
TABLE_5 = {
    "paragraph vector": {"MR": 74.8, "CR": 78.1, "Subj": 90.5, "MPQA": 74.2, "TREC": 91.8},
    "skip-thought": {"MR": 75.5, "CR": 79.3, "Subj": 92.1, "MPQA": 86.9, "TREC": 91.4},
    "skip-thought, layer norm": {"MR": 79.5, "CR": 82.6, "Subj": 93.4, "MPQA": 89.0},
    "CPC": {"MR": 76.9, "CR": 80.1, "Subj": 91.2, "MPQA": 87.7, "TREC": 96.8},
}
