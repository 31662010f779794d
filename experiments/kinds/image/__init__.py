"""Contrastive predictive coding on images: `cpc train`."""
