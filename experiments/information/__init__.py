"""Experiments on estimators of mutual information, and estimates for users' arrays."""
