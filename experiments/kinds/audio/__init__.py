"""Contrastive predictive coding on sound, raw or log-mel: `cpc train`."""
