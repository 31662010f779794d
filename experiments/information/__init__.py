"""Experiments on estimators of mutual information, and estimates for a user's arrays."""
