"""Contrastive predictive coding on series of numbers: `cpc train`."""
