"""Contrastive predictive coding on images, trained with `cpc train`."""
