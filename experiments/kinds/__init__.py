"""The kinds of configs, each a folder; `registry` lists them."""
