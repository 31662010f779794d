"""Contrastive predictive coding on text: `python -m experiments.text`."""
