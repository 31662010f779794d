"""Contrastive predictive coding on numeric series, trained with `cpc train`."""
