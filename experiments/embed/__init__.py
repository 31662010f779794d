"""Features of a folder of files: `cpc embed`."""
