"""Craftax-Classic from pixels, for a GPU: PPO with a GRU that also predicts 8 steps ahead.

    pip install 'cpc-jax[craftax]'
    cpc train --config rl_craftax --workdir runs/craftax

PPO settings follow the recurrent baseline of Matthews et al. (2024), from memory. For lack of a
GPU, only two updates of a small version ran, on a CPU. Each new episode generates a world, so only
64 are generated per step, not 1,024 (docs/environments.md). `--config.cpc.weight=0.0` disables CPC.
"""

from configs import rl


def get_config():
    """Return 1,024 environments, 64 steps, 4 epochs of 8 minibatches, 10^8 steps."""
    c = rl.get_config()
    c.num_env_steps = 10**8
    c.environment.name = "craftax:Craftax-Classic-Pixels-v1"
    c.environment.num = 1024
    c.environment.resets = 64
    c.environment.stagger = 100
    c.model.encoder = "conv"
    c.model.channels, c.model.strides = (32, 64, 64), (2, 2, 2)
    c.model.width = 256
    c.model.memory_width = 512
    c.policy.name = "ppo"
    c.policy.unroll = 64
    c.policy.epochs, c.policy.minibatches = 4, 8
    c.policy.discount, c.policy.gae_lambda = 0.99, 0.8
    c.policy.value = 0.5
    c.cpc.rule = "one_per_sequence"
    c.optim.learning_rate = 2e-4
    c.optim.schedule = "linear"
    c.evaluate.num_steps = 0
    return c
