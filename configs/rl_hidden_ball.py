"""The hidden ball: A2C with a GRU, whose memory also predicts 8 steps ahead.

python -m experiments.rl --config configs/rl_hidden_ball.py --workdir runs/ball

A ball is seen as it begins to fall and as it lands; in between the agent has to remember it. With
`--config.environment.name=hidden_ball:never_seen` it does not show again, and nothing that is ever
seen asks for that memory. docs/rl.md has ten seeds of both, with CPC and without: in 400,000 frames
it raises the area under the curve by 0.21 (0.18 to 0.26) on the first, by 0.00 (-0.04 to 0.05) on
the other.
"""

from typing import Any

from configs import rl


def get_config() -> Any:
    """640,000 steps of 16 environments, 4 of which are predicted at a step."""
    c = rl.get_config()
    c.cpc.num_environments = 4
    return c
