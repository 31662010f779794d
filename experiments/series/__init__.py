"""Contrastive predictive coding on series of numbers: `python -m experiments.series`."""
