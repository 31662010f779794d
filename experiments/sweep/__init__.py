"""Many runs of one config: `cpc sweep`."""
