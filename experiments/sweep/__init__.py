"""Many runs of one config: `python -m experiments.sweep`."""
