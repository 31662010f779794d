"""A run's model as a folder to share: `cpc export`."""
