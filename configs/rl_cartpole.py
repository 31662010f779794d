"""PPO on CartPole with purejaxrl's settings, without memory or CPC, to check PPO.

    pip install 'cpc-jax[gymnax]'
    cpc train --config rl_cartpole --workdir runs/cartpole

Takes seconds on one core. The maximum return is 500; seeds 0 to 2 average 493, 495 and 479 over the
last tenth of training. The settings are those of purejaxrl's ppo.py, except for the actor (64
ReLUs, then 64 tanh, with the previous action as an input), Adam's epsilon, and minibatches, which
are whole environments, as in recurrent PPO. With `model.critic_widths=()`, policy and values share
a network. The return then stays below 140, since returns in the hundreds make value gradients
dominate.
"""

from configs import rl


def get_config():
    """Return 4 environments, 128 steps, 4 epochs of 4 minibatches."""
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
