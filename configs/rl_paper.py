"""The agent of the paper's section 3.4: A2C by RMSProp, an LSTM, 30 steps ahead in unrolls of 100.

    pip install 'cpc-jax[craftax]'
    python -m experiments.rl --config configs/rl_paper.py --workdir runs/paper-agent

Its levels, of DeepMind Lab, are no JAX; here it plays Craftax-Classic from pixels, whose episodes
are as long. The paper says of the network that it is the baseline's, and draws the learning rate,
the weight of the entropy and RMSProp's epsilon at random: width and numbers here are ours. Not
trained, for want of a GPU: a small one ran on the T-maze.
"""

from typing import Any

from configs import rl_craftax


def get_config() -> Any:
    """32 environments, 10^8 steps; scores are bilinear, and all of the rollout is candidates."""
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
