"""Export of a trained model as a folder: `cpc export`."""
