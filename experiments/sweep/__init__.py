"""Sweeps over many runs of one config: `cpc sweep`."""
