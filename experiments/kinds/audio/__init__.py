"""Contrastive predictive coding on raw or log-mel sound, trained with `cpc train`."""
