"""Flags, configs, run directories and devices that all commands share."""
