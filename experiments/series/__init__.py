"""Contrastive predictive coding on series of numbers: `cpc series`."""
