"""Estimates of mutual information where it is known: `python -m experiments.mutual_information`."""
