"""Training pipeline, in which configs become plans that define problems, runs and records."""
