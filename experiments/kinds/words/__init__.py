"""The kind "words", with objectives from maximum likelihood to InfoNCE."""
