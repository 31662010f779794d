"""Every key of configs of kind rl."""

from typing import Any

from configs.defaults import LOGGER, MOST_OFFSETS, WIDEST
from configs.keys import Key, make_config

KEYS = {
    "kind": Key("rl", "of data", words=("rl",)),
    "seed": Key(0, "of all randomness", low=0, below=2**32),
    "num_env_steps": Key(640_000, "steps of all environments together", low=1, high=2**40),
    "log_rollouts": Key(20, "rollouts from one record to the next", low=1),
    "save_rollouts": Key(500, "rollouts from one checkpoint to the next; 0: at the end", low=0),
    "logger": LOGGER,
    "environment": {
        "name": Key(
            "hidden_ball:seen_again",
            "hidden_ball:VARIANT, t_maze, t_maze:seen_again, gymnax:ID, navix:ID or craftax:ID",
        ),
        "num": Key(16, "environments side by side", low=1, high=2**20),
        "resets": Key(0, "episodes begun at each step, at most: more that end then begin alike; "
                      "0: one for each environment", low=0, high=2**20),
        "stagger": Key(10, "steps of a usual episode, over which they begin", low=1, high=2**20),
    },
    "model": {
        "encoder": Key("dense", "dense layers, or convolutions of pixels", words=("dense", "conv")),
        "widths": Key((128, 64), "of dense layers, the last that of z", low=1, high=WIDEST),
        "channels": Key((16, 32), "of the convolutions", low=1, high=WIDEST),
        "strides": Key((1, 1), "of the convolutions", low=1, high=WIDEST),
        "width": Key(64, "of z after convolutions", low=1, high=WIDEST),
        "memory": Key("gru", "what keeps the past", words=("gru", "lstm", "none")),
        "memory_width": Key(64, "of c", low=1, high=WIDEST),
        "critic_widths": Key((), "of layers of the values' own, on observations; (): on c", low=1,
                             high=WIDEST),
    },
    "policy": {
        "name": Key("a2c", "the loss: one step on each rollout, or several clipped ones",
                    words=("a2c", "ppo")),
        "unroll": Key(20, "steps of a rollout", low=1, high=2**20),
        "discount": Key(0.97, "gamma", low=0, high=1),
        "gae_lambda": Key(1.0, "of the advantages", low=0, high=1),
        "entropy": Key(0.01, "weight of the policy's entropy", low=0),
        "value": Key(1.0, "weight of the values' loss", low=0),
        "epochs": Key(1, "ppo: times through a rollout", low=1, high=1000),
        "minibatches": Key(1, "ppo: parts of the environments, a step each", low=1, high=2**20),
        "clip": Key(0.2, "ppo: of the ratio of probabilities, and of values", above=0),
    },
    "cpc": {
        "weight": Key(0.1, "of the loss of contrastive predictive coding; 0: none", low=0),
        "num_offsets": Key(8, "steps ahead that are predicted", low=1, high=MOST_OFFSETS),
        "num_environments": Key(0, "drawn for each step, whose rollouts are predicted; 0: all",
                                low=0, high=2**20),
        "given_actions": Key(False, "whether predictions know the actions between (CPC|Action)"),
        "targets": Key("own", "latents of the own environment, or, as a control, of another",
                       words=("own", "other")),
        "rule": Key("batch", "who is a negative: all of the rollout, other episodes, the own one, "
                    "or of each other environment the latent at the positive's time",
                    words=("batch", "excluding_sequence", "own_sequence", "one_per_sequence")),
        "cosine": Key(True, "whether scores are cosines"),
        "temperature": Key(0.1, "divides the scores", above=0),
    },
    "optim": {
        "name": Key("adam", "of the optimizer; the paper's is rmsprop",
                    words=("adam", "rmsprop")),
        "learning_rate": Key(2e-3, "of the first step", above=0),
        "schedule": Key("constant", "of the learning rate",
                        words=("constant", "cosine", "linear")),
        "clip_norm": Key(1.0, "largest norm of a gradient; 0: any", low=0),
    },
    "evaluate": {
        "num_steps": Key(200, "of each environment, for the probe of the memory; 0: none", low=0,
                         high=2**20),
    },
}  # fmt: skip


def get_config() -> Any:
    """Return the defaults: the hidden ball that is seen again."""
    return make_config(KEYS)
