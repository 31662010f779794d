"""Reinforcement learning: environments, rollouts, returns, and the losses of a policy."""

from cpc.rl.environment import Environment, Outcome, auto_reset
from cpc.rl.losses import entropy, log_prob, policy_gradient_loss, ppo_loss, value_loss
from cpc.rl.returns import gae, standardize
from cpc.rl.side_by_side import side_by_side
from cpc.rl.t_maze import make_t_maze

__all__ = [
    "Environment",
    "Outcome",
    "auto_reset",
    "entropy",
    "gae",
    "log_prob",
    "make_t_maze",
    "policy_gradient_loss",
    "ppo_loss",
    "side_by_side",
    "standardize",
    "value_loss",
]
