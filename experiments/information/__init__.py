"""Experiments on estimators of mutual information, and estimates for arrays of users."""
