"""What is in frozen features: embeddings, probes, neighbours, baselines, collapse."""

from cpc.evaluate.convex import fit_lbfgs_probe, fit_ridge_probe
from cpc.evaluate.embeddings import embed_utterances
from cpc.evaluate.few_labels import FRACTIONS, few_label_row, label_subset, seeds_interval
from cpc.evaluate.mfcc import mfcc
from cpc.evaluate.neighbours import Top, knn_predict, most_exciting, nearest
from cpc.evaluate.pictures import Difference, embed_pictures, paired_difference, picture_rows
from cpc.evaluate.probe import Probe, adam_cosine, fit_probe, paper_sgd, predict
from cpc.evaluate.rows import answer_rows, probe_rows
from cpc.evaluate.scores import (
    bootstrap_interval,
    frame_correct,
    in_best,
    majority_accuracy,
    utterance_correct,
)
from cpc.evaluate.spread import feature_spread

__all__ = [
    "FRACTIONS",
    "Difference",
    "Probe",
    "Top",
    "adam_cosine",
    "answer_rows",
    "bootstrap_interval",
    "embed_pictures",
    "embed_utterances",
    "feature_spread",
    "few_label_row",
    "fit_lbfgs_probe",
    "fit_probe",
    "fit_ridge_probe",
    "frame_correct",
    "in_best",
    "knn_predict",
    "label_subset",
    "majority_accuracy",
    "mfcc",
    "most_exciting",
    "nearest",
    "paired_difference",
    "paper_sgd",
    "picture_rows",
    "predict",
    "probe_rows",
    "seeds_interval",
    "utterance_correct",
]
