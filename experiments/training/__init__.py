"""The one pipeline: a config becomes a plan, a plan a problem, a problem a run and its records."""
