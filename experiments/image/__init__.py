"""Contrastive predictive coding on images: `cpc image`."""
