"""An AR(1) process with information in closed form, which trains in seconds on a laptop.

    cpc train --config series_ar1 --workdir runs/ar1

In a Gaussian process with correlation r between neighbouring steps, the past has -log(1 - r^(2k)) /
2 nats of information about the step k ahead. The page shows this value next to the bound.
"""

from configs import series


def get_config():
    """Return one channel, an encoder of single steps, and a small GRU."""
    c = series.get_config()
    c.num_steps = 400
    c.log_every = 25
    c.eval_every = c.save_every = 100
    c.data.standardize = False
    c.data.window_steps = 64
    c.model.width = c.model.context_width = 32
    c.model.num_offsets = 6
    c.negatives.rule = "one_per_sequence"
    c.optim.learning_rate = 4e-3
    c.optim.warmup_steps = 20
    return c
