"""Noise-contrastive estimation measured against its theory: `cpc nce`."""
