"""Reinforcement learning: environments, rollouts, returns, and the losses of a policy."""

from cpc.rl.environment import Environment, Outcome, auto_reset

__all__ = ["Environment", "Outcome", "auto_reset"]
