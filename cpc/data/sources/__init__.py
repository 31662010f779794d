"""Data sources: folders, datasets prepared by tfds, packages and synthetic data."""
