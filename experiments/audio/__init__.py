"""Contrastive predictive coding on raw waveforms: `python -m experiments.audio`."""
