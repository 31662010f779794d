"""Campaigns of kills, damage, unusual folders and configs, and malicious exports."""
