"""Benchmarks of time and memory, for `cpc bench`."""
