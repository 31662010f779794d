"""How fast and how big: `python -m experiments.bench` prints a table and writes it as json."""
