"""The paper's tables and figures made again: `python -m experiments.reproduce`."""
