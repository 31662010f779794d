"""Kinds of experiments, one per subfolder, which `registry` lists."""
