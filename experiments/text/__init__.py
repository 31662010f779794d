"""Contrastive predictive coding on text: `cpc text`."""
