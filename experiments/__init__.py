"""Entry points: the only place where model, loss, data and evaluators meet."""
