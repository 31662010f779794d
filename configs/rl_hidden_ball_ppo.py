"""The hidden ball with PPO, where minibatches are whole environments with stored memories.

cpc train --config rl_hidden_ball_ppo --workdir runs/ball-ppo
"""

from configs import rl


def get_config():
    """Return four epochs of four minibatches on each rollout."""
    c = rl.get_config()
    c.policy.name = "ppo"
    c.policy.epochs = c.policy.minibatches = 4
    c.policy.gae_lambda = 0.95
    c.optim.learning_rate = 5e-4
    return c
