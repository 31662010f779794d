"""The kind "words" for word models, with objectives from maximum likelihood to InfoNCE."""
