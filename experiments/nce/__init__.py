"""Noise-contrastive estimation measured against its theory: `python -m experiments.nce`."""
