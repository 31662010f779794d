"""Configs, with one experiment per file and its command and expected results in the docstring."""
