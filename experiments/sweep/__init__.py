"""Sweeps over many runs of one config, for `cpc sweep`."""
