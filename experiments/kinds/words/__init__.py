"""Words: one experiment, all objectives, from maximum likelihood to InfoNCE."""
