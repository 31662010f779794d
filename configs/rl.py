"""Config keys of kind rl."""

from configs.defaults import LOGGER, MAX_OFFSETS, MAX_WIDTH
from configs.keys import Key, make_config
from cpc.negatives import RULES

KEYS = {
    "kind": Key("rl", "kind of data", words=("rl",)),
    "seed": Key(0, "seed of all randomness", low=0, below=2**32),
    "num_env_steps": Key(640_000, "number of steps in all environments", low=1, high=2**40),
    "log_rollouts": Key(20, "number of rollouts between records", low=1),
    "save_rollouts": Key(
        500, "number of rollouts between checkpoints, or 0 for only the last", low=0),
    "logger": LOGGER,
    "environment": {
        "name": Key(
            "hidden_ball:seen_again", "environment: hidden_ball:VARIANT, t_maze, "
            "t_maze:seen_again, gymnax:ID, navix:ID or craftax:ID"),
        "num": Key(16, "number of parallel environments", low=1, high=2**20),
        "resets": Key(
            0, "maximum number of initial states drawn per step, or 0 for one per environment; if "
            "more episodes end, some of the next ones share an initial state", low=0, high=2**20),
        "stagger": Key(
            10, "number of steps over which environments start", low=1, high=2**20),
    },
    "model": {
        "encoder": Key(
            "dense", "encoder: dense layers (dense) or convolutions of pixels (conv)",
            words=("dense", "conv")),
        "widths": Key(
            (128, 64), "widths of the dense layers, of which the last is the width of z",
            low=1, high=MAX_WIDTH),
        "channels": Key((16, 32), "channels of the convolutions", low=1, high=MAX_WIDTH),
        "strides": Key((1, 1), "strides of the convolutions", low=1, high=MAX_WIDTH),
        "width": Key(64, "width of z after convolutions", low=1, high=MAX_WIDTH),
        "memory": Key("gru", "recurrent network for memory", words=("gru", "lstm", "none")),
        "memory_width": Key(64, "width of c", low=1, high=MAX_WIDTH),
        "critic_widths": Key(
            (), "widths of a value network on observations, or () to use c", low=1, high=MAX_WIDTH),
    },
    "policy": {
        "name": Key(
            "a2c", "policy loss, with one step per rollout (a2c) or several clipped steps (ppo)",
            words=("a2c", "ppo")),
        "unroll": Key(20, "number of steps per rollout", low=1, high=2**20),
        "discount": Key(0.97, "discount gamma", low=0, high=1),
        "gae_lambda": Key(1.0, "lambda of the generalized advantage estimate", low=0, high=1),
        "entropy": Key(0.01, "weight of the policy's entropy", low=0),
        "value": Key(1.0, "weight of the value loss", low=0),
        "epochs": Key(1, "ppo: number of passes through a rollout", low=1, high=1000),
        "minibatches": Key(
            1, "ppo: number of minibatches (groups of environments) per pass", low=1, high=2**20),
        "clip": Key(0.2, "ppo: clipping range of the probability ratio and of values", above=0),
    },
    "cpc": {
        "weight": Key(0.1, "weight of the contrastive loss, or 0 for none", low=0),
        "num_offsets": Key(8, "number of steps ahead to predict", low=1, high=MAX_OFFSETS),
        "num_environments": Key(
            0, "number of environments per contrastive loss, or 0 for all", low=0, high=2**20),
        "given_actions": Key(
            False, "whether predictions depend on the actions up to the target (CPC|Action)"),
        "targets": Key(
            "own", "environment whose latents are predicted: the same environment (own) or, as a "
            "control, another one (other)", words=("own", "other")),
        "rule": Key(
            "batch", "rule that admits latents as negatives: all in the rollout, in other episodes "
            "or the same episode, or in the other environments at the time of the positive",
            words=tuple(word for word in RULES if word != "same_group")),
        "cosine": Key(True, "whether scores are cosines"),
        "temperature": Key(0.1, "temperature that divides the scores", above=0),
    },
    "optim": {
        "name": Key("adam", "optimizer, which is rmsprop in the paper", words=("adam", "rmsprop")),
        "learning_rate": Key(2e-3, "learning rate of the first step", above=0),
        "schedule": Key(
            "constant", "learning rate schedule", words=("constant", "cosine", "linear")),
        "clip_norm": Key(1.0, "maximum gradient norm, or 0 for no limit", low=0),
    },
    "evaluate": {
        "num_steps": Key(
            200, "number of steps per environment in the memory probe, or 0", low=0, high=2**20),
    },
}  # fmt: skip


def get_config():
    """Return the defaults, with the environment hidden_ball:seen_again."""
    return make_config(KEYS)
