"""Seeded one-line faults, and whether the nearest tests detect them."""
