"""Config keys of kind rl."""

from configs.defaults import LOGGER, MAX_OFFSETS, MAX_WIDTH
from configs.keys import Key, make_config
from cpc.negatives import RULES

KEYS = {
    "kind": Key("rl", "kind of data", words=("rl",)),
    "seed": Key(0, "seed of all randomness", low=0, below=2**32),
    "num_env_steps": Key(640_000, "steps of all environments together", low=1, high=2**40),
    "log_rollouts": Key(20, "rollouts between records", low=1),
    "save_rollouts": Key(500, "rollouts between checkpoints; 0: only the last", low=0),
    "logger": LOGGER,
    "environment": {
        "name": Key(
            "hidden_ball:seen_again", "environment: hidden_ball:VARIANT, t_maze, "
            "t_maze:seen_again, gymnax:ID, navix:ID or craftax:ID"),
        "num": Key(16, "environments run in parallel", low=1, high=2**20),
        "resets": Key(
            0, "maximum number of new episodes drawn at each step; if more end, some start in the "
            "same state; 0: one for each environment", low=0, high=2**20),
        "stagger": Key(
            10, "typical length of an episode, over which the starts of environments are spread",
            low=1, high=2**20),
    },
    "model": {
        "encoder": Key(
            "dense", "encoder: dense layers, or convolutions of pixels", words=("dense", "conv")),
        "widths": Key(
            (128, 64), "widths of the dense layers, the last that of z", low=1, high=MAX_WIDTH),
        "channels": Key((16, 32), "channels of the convolutions", low=1, high=MAX_WIDTH),
        "strides": Key((1, 1), "strides of the convolutions", low=1, high=MAX_WIDTH),
        "width": Key(64, "width of z after convolutions", low=1, high=MAX_WIDTH),
        "memory": Key(
            "gru", "recurrent network for memory", words=("gru", "lstm", "none")),
        "memory_width": Key(64, "width of c", low=1, high=MAX_WIDTH),
        "critic_widths": Key(
            (), "widths of a separate value network on observations; (): values are a function of "
            "c", low=1, high=MAX_WIDTH),
    },
    "policy": {
        "name": Key(
            "a2c", "loss: one step per rollout (a2c), or several clipped ones (ppo)",
            words=("a2c", "ppo")),
        "unroll": Key(20, "steps of a rollout", low=1, high=2**20),
        "discount": Key(0.97, "discount gamma", low=0, high=1),
        "gae_lambda": Key(1.0, "lambda of the generalized advantage estimate", low=0, high=1),
        "entropy": Key(0.01, "weight of the policy's entropy", low=0),
        "value": Key(1.0, "weight of the values' loss", low=0),
        "epochs": Key(1, "ppo: passes through a rollout", low=1, high=1000),
        "minibatches": Key(
            1, "ppo: groups of environments, each with its own step", low=1, high=2**20),
        "clip": Key(
            0.2, "ppo: clipping range of the ratio of probabilities, and of values", above=0),
    },
    "cpc": {
        "weight": Key(0.1, "weight of the contrastive loss; 0: none", low=0),
        "num_offsets": Key(8, "number of steps ahead that are predicted", low=1, high=MAX_OFFSETS),
        "num_environments": Key(
            0, "environments whose rollouts are predicted, drawn for each step; 0: all",
            low=0, high=2**20),
        "given_actions": Key(
            False, "whether predictions are given the actions in between (CPC|Action)"),
        "targets": Key(
            "own", "environment whose latents are predicted: its own, or as a control another one",
            words=("own", "other")),
        "rule": Key(
            "batch", "which latents are negatives: all in the rollout, in other episodes, in the "
            "same episode, or in the other environments at the time of the positive",
            words=tuple(word for word in RULES if word != "same_group")),
        "cosine": Key(True, "whether scores are cosines"),
        "temperature": Key(0.1, "divisor of the scores", above=0),
    },
    "optim": {
        "name": Key("adam", "optimizer; the paper's is rmsprop", words=("adam", "rmsprop")),
        "learning_rate": Key(2e-3, "learning rate of the first step", above=0),
        "schedule": Key(
            "constant", "schedule of the learning rate", words=("constant", "cosine", "linear")),
        "clip_norm": Key(1.0, "maximum gradient norm; 0: unlimited", low=0),
    },
    "evaluate": {
        "num_steps": Key(
            200, "steps of each environment for the probe of the memory; 0: none", low=0, high=2**20
        ),
    },
}  # fmt: skip


def get_config():
    """Return the defaults: hidden_ball:seen_again."""
    return make_config(KEYS)
