"""Contrastive predictive coding on text: `cpc train`."""
