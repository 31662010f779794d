"""Contrastive predictive coding on images: `python -m experiments.image`."""
