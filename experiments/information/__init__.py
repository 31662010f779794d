"""Estimates of mutual information where it is known: `cpc train`."""
