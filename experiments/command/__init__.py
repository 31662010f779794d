"""Flags, configs, run directories and devices, which all commands share."""
