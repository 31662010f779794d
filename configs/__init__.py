"""Configs, one experiment per file; docstrings give the command and the expected results."""
