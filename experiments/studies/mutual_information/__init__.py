"""How much do two arrays tell of each other: `python -m experiments.studies.mutual_information`."""
