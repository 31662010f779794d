"""The hidden ball: A2C with a GRU, whose memory also predicts 8 steps ahead.

python -m experiments.rl --config configs/rl_hidden_ball.py --workdir runs/ball

A ball is seen as it begins to fall and as it lands; in between the agent has to remember it. With
`--config.environment.name=hidden_ball:never_seen` it does not show again, and nothing that is ever
seen asks for that memory.
"""

from typing import Any

from configs import rl


def get_config() -> Any:
    """640,000 steps of 16 environments."""
    return rl.get_config()
