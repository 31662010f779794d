"""Export of trained models to folders, as the command `cpc export`."""
