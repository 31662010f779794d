"""Reinforcement learning: environments, rollouts, returns, and the losses of a policy."""

from cpc.rl.environment import Environment, Outcome, auto_reset
from cpc.rl.hidden_ball import ball_information, make_hidden_ball
from cpc.rl.losses import entropy, log_prob, policy_gradient_loss, ppo_loss, value_loss
from cpc.rl.outside import make_environment
from cpc.rl.returns import gae, standardize
from cpc.rl.rollout import Rollout, Worlds, begin, roll_out
from cpc.rl.side_by_side import side_by_side
from cpc.rl.t_maze import make_t_maze

__all__ = [
    "Environment",
    "Outcome",
    "Rollout",
    "Worlds",
    "auto_reset",
    "ball_information",
    "begin",
    "entropy",
    "gae",
    "log_prob",
    "make_environment",
    "make_hidden_ball",
    "make_t_maze",
    "policy_gradient_loss",
    "ppo_loss",
    "roll_out",
    "side_by_side",
    "standardize",
    "value_loss",
]
