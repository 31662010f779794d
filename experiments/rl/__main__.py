r"""Agents whose memory must also predict what it will see (van den Oord et al. 2018, section 3.4).

    cpc rl --config rl_hidden_ball --workdir runs/ball
    cpc rl --config rl_hidden_ball --workdir runs/alone \
        --config.cpc.weight=0.0

Trains by A2C or PPO, with or without contrastive predictive coding as an auxiliary loss, and writes
a page: returns, what is predicted, what the memory keeps. `cpc rl --keys [SECTION]` lists the keys
of a config; any can be set, and the same command again resumes.
"""

from configs.rl import KEYS
from experiments.command import cli
from experiments.command.keys import print_keys
from experiments.rl.run import run

if __name__ == "__main__":
    print_keys(KEYS)
    CONFIG = cli.define_config()
    cli.run(lambda: run(CONFIG.value, cli.WORKDIR.value, cli.DEVICE.value))
