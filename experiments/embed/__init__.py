"""Features of a folder of files: `python -m experiments.embed`."""
