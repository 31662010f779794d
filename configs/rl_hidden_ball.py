"""The hidden ball: A2C with a GRU, whose memory also predicts 8 steps ahead.

cpc train --config rl_hidden_ball --workdir runs/ball

A ball is visible as it starts to fall and as it lands; in between the agent must remember it. With
`--config.environment.name=hidden_ball:never_seen` it does not reappear, and no observation requires
that memory. docs/rl.md has ten seeds of both, with and without CPC: in 1.2 million frames CPC
changes the area under the learning curve by +0.20 (0.09 to 0.28) on the first and by -0.20 (-0.29
to -0.11) on the second.
"""

from configs import rl


def get_config():
    """640,000 steps of 16 environments, 4 of which are predicted at a step."""
    c = rl.get_config()
    c.cpc.num_environments = 4
    return c
