"""A T-maze from pixels, whose final turn is worth 1 with memory of the cue, and 1/2 without.

    cpc train --config rl_t_maze --workdir runs/t_maze

`--config.environment.name=t_maze` never shows the cue again, so no image requires remembering it.
"""

from configs import rl


def get_config():
    """Return A2C with convolutions and a GRU in a maze where the cue reappears."""
    c = rl.get_config()
    c.num_env_steps = 200_000
    c.environment.name = "t_maze:seen_again"
    c.model.encoder = "conv"
    c.model.channels, c.model.strides = (8,), (1,)
    c.cpc.num_environments = 4
    return c
