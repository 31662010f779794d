"""The agent in section 3.4 of the paper, an LSTM that predicts 30 steps ahead (A2C, RMSProp).

    pip install 'cpc-jax[craftax]'
    cpc train --config rl_paper --workdir runs/paper-agent

The paper's DeepMind Lab levels are not in JAX. Here, the agent plays Craftax-Classic from pixels,
whose episodes have the same length, in unrolls of 100 steps. The paper uses the baseline's network
and samples the learning rate, the entropy weight and RMSProp's epsilon at random, so we choose the
widths and these values. For lack of a GPU, only a small version ran, on the T-maze.
"""

from configs import rl_craftax


def get_config():
    """Return 32 environments and bilinear scores, with the whole rollout as candidates."""
    c = rl_craftax.get_config()
    c.environment.num, c.environment.resets = 32, 4
    c.model.memory, c.model.memory_width = "lstm", 256
    c.policy.name = "a2c"
    c.policy.unroll = 100
    c.policy.epochs = c.policy.minibatches = 1
    c.policy.gae_lambda = 1.0
    c.cpc.num_offsets = 30
    c.cpc.rule = "batch"
    c.cpc.cosine, c.cpc.temperature = False, 1.0
    c.optim.name = "rmsprop"
    c.optim.schedule = "constant"
    return c
