"""Benchmarks of time and memory: `cpc bench`."""
