"""The kind "rl" for agents with a predictive memory (van den Oord et al. 2018, section 3.4)."""
