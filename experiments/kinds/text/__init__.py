"""Contrastive predictive coding on text, trained with `cpc train`."""
