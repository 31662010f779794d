"""Runs next to each other on one page: `cpc compare`."""
