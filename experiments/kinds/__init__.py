"""Kinds of experiments, each a folder; `registry` lists them."""
