"""Evaluation of frozen features: embeddings, probes, neighbours, ABX, CTC, intervals."""

from cpc.evaluate.abx import Cell, abx_score, cell_errors, cell_weights, cut_tokens, make_cells
from cpc.evaluate.accuracy import (
    bootstrap_interval,
    frame_correct,
    in_best,
    majority_accuracy,
    utterance_correct,
)
from cpc.evaluate.codes import code_entropy, code_scores
from cpc.evaluate.convex import fit_lbfgs_probe, fit_ridge_probe
from cpc.evaluate.cross_validation import (
    CrossValidated,
    bag_of_words,
    cross_validate,
    expand_vocabulary,
    fit_dense,
    fit_sparse,
)
from cpc.evaluate.ctc import Edits, beam_decode, collapse, count_edits, ctc_nats, greedy_decode
from cpc.evaluate.dtw import dtw, dtw_distances, frame_distances
from cpc.evaluate.embeddings import embed_pieces, embed_utterances
from cpc.evaluate.few_labels import FRACTIONS, few_label_score, label_subset, seeds_interval
from cpc.evaluate.fit import fit_probe, fit_probes
from cpc.evaluate.images import embed_images, image_scores
from cpc.evaluate.mfcc import mfcc
from cpc.evaluate.neighbours import Top, knn_predict, most_exciting, nearest
from cpc.evaluate.probe import Probe, Updates, adam_cosine, describe_fit, paper_sgd, predict
from cpc.evaluate.probe_scores import answer_scores, probe_scores
from cpc.evaluate.reliable import (
    area_under_curve,
    interquartile_mean,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)
from cpc.evaluate.spread import feature_spread
from cpc.evaluate.stacked import Stacked, read_rows, with_neighbours

__all__ = [
    "FRACTIONS",
    "Cell",
    "CrossValidated",
    "Edits",
    "Probe",
    "Stacked",
    "Top",
    "Updates",
    "abx_score",
    "adam_cosine",
    "answer_scores",
    "area_under_curve",
    "bag_of_words",
    "beam_decode",
    "bootstrap_interval",
    "cell_errors",
    "cell_weights",
    "code_entropy",
    "code_scores",
    "collapse",
    "count_edits",
    "cross_validate",
    "ctc_nats",
    "cut_tokens",
    "describe_fit",
    "dtw",
    "dtw_distances",
    "embed_images",
    "embed_pieces",
    "embed_utterances",
    "expand_vocabulary",
    "feature_spread",
    "few_label_score",
    "fit_dense",
    "fit_lbfgs_probe",
    "fit_probe",
    "fit_probes",
    "fit_ridge_probe",
    "fit_sparse",
    "frame_correct",
    "frame_distances",
    "greedy_decode",
    "image_scores",
    "in_best",
    "interquartile_mean",
    "knn_predict",
    "label_subset",
    "majority_accuracy",
    "make_cells",
    "mfcc",
    "most_exciting",
    "nearest",
    "optimality_gap",
    "paper_sgd",
    "performance_profile",
    "predict",
    "probability_of_improvement",
    "probe_scores",
    "read_rows",
    "seeds_interval",
    "stratified_interval",
    "utterance_correct",
    "with_neighbours",
]
