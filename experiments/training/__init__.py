"""Training pipeline: configs are interpreted as plans, which define problems, runs and records."""
