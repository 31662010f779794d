"""A run's model as a folder to share: `python -m experiments.export`."""
