"""Contrastive predictive coding on sound, raw or log-mel: `python -m experiments.audio`."""
