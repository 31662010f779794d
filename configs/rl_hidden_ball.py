"""The hidden ball, learned by A2C with a GRU that also predicts 8 steps ahead.

cpc train --config rl_hidden_ball --workdir runs/ball

A ball is visible as it starts to fall and as it lands. In between, the agent must remember it. With
`--config.environment.name=hidden_ball:never_seen` the ball does not reappear, and no observation
requires that memory. docs/results/agents.md has ten seeds of both, with and without CPC. In 1.2
million frames, CPC changes the area under the learning curve by +0.20 (0.09 to 0.28) on the first
and by -0.20 (-0.29 to -0.11) on the second.
"""

from configs import rl


def get_config():
    """Return 640,000 steps in 16 environments, of which 4 have a contrastive loss in each step."""
    c = rl.get_config()
    c.cpc.num_environments = 4
    return c
