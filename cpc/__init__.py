"""Contrastive predictive coding in JAX (van den Oord, Li and Vinyals, 2018)."""
