"""What is in frozen features: embeddings, probes, baselines, collapse."""

from cpc.evaluate.embeddings import embed_utterances
from cpc.evaluate.mfcc import mfcc
from cpc.evaluate.probe import Probe, fit_probe, predict
from cpc.evaluate.rows import probe_rows
from cpc.evaluate.scores import (
    bootstrap_interval,
    frame_correct,
    majority_accuracy,
    utterance_correct,
)
from cpc.evaluate.spread import feature_spread

__all__ = [
    "Probe",
    "bootstrap_interval",
    "embed_utterances",
    "feature_spread",
    "fit_probe",
    "frame_correct",
    "majority_accuracy",
    "mfcc",
    "predict",
    "probe_rows",
    "utterance_correct",
]
