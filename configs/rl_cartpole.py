"""PPO on a task that everyone has solved: CartPole, with purejaxrl's numbers, no memory, no CPC.

    pip install 'cpc-jax[gymnax]'
    python -m experiments.rl --config configs/rl_cartpole.py --workdir runs/cartpole

Seconds on a core. 500 is the most that an episode can bring; seeds 0 to 2 end with a mean of 493,
495 and 479 over the last tenth of their training. As in purejaxrl's ppo.py but for the actor
(64 ReLUs, then 64 tanh, with the action before beside them), the epsilon of Adam, and minibatches,
which are whole environments, as recurrent PPO has them. With `model.critic_widths=()` one network
serves both, returns of hundreds make its gradients the values' alone, and 140 is all it gets to.
"""

from typing import Any

from configs import rl


def get_config() -> Any:
    """4 environments, 128 steps, 4 epochs of 4 minibatches."""
    c = rl.get_config()
    c.num_env_steps = 500_000
    c.environment.name = "gymnax:CartPole-v1"
    c.environment.num = 4
    c.model.widths = (64,)
    c.model.memory = "none"
    c.model.critic_widths = (64, 64)
    c.policy.name = "ppo"
    c.policy.unroll = 128
    c.policy.epochs = c.policy.minibatches = 4
    c.policy.discount = 0.99
    c.policy.gae_lambda = 0.95
    c.policy.value = c.optim.clip_norm = 0.5
    c.cpc.weight = 0.0
    c.evaluate.num_steps = 1200
    c.optim.learning_rate = 2.5e-4
    c.optim.schedule = "linear"
    return c
