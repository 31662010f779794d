"""The kind "rl": agents whose memory also predicts (van den Oord et al. 2018, section 3.4)."""
