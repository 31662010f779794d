"""The kind "words": word models trained by objectives from maximum likelihood to InfoNCE."""
