"""Comparison of several runs on one page: `cpc compare`."""
