"""Seeded faults, one line each, and whether the tests nearest to them notice."""
