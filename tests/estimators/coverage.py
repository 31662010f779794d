"""Coverage of the 95 % interval of log N - L, for a process with a known optimal critic.

    python -m tests.estimators.coverage --draws 1500

A draw contains batches of autoregressive sequences, scored by the optimal critic in `cpc_loss`. The
interval should contain the mean of log N - L over all draws in 95 % of draws. The exit status is 1
if it does in less than 93 % in a setting.
"""

import functools
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from cpc import negatives
from cpc.estimators import Tracker
from cpc.losses import OffsetSums, cpc_loss, hard_weighted, info_nce
from cpc.types import CPCOutputs, Position, Rule

#: 3.5 standard errors of 1,500 draws below 95 %.
MIN_COVERAGE = 0.93


class Setting(NamedTuple):
    """Batches of sequences of a process, how they are contrasted and their loss."""

    rule: Rule
    coefficient: float
    batches: int
    sequences: int
    loss: Callable = info_nce
    length: int = 16


TILTED = functools.partial(hard_weighted, prior=0, concentration=0.5)
SETTINGS = {
    "strict": Setting(negatives.one_per_sequence, 0.9, 8, 8),
    "strict, one batch": Setting(negatives.one_per_sequence, 0.9, 1, 16),
    "strict, large batches": Setting(negatives.one_per_sequence, 0.9, 8, 64),
    "strict, near the ceiling": Setting(negatives.one_per_sequence, 0.99, 8, 8),
    "strict, little predicted": Setting(negatives.one_per_sequence, 0.3, 8, 8),
    "batch": Setting(negatives.batch, 0.9, 8, 8),
    "batch, one batch": Setting(negatives.batch, 0.9, 1, 16),
    "other sequences": Setting(negatives.excluding_sequence, 0.9, 8, 8),
    "hard negatives": Setting(negatives.excluding_sequence, 0.9, 8, 8, TILTED),
}


def draw_outputs(rng: jax.Array, setting: Setting) -> CPCOutputs:
    """Return one batch of the process, whose scores are the log density ratio one step ahead."""
    a = setting.coefficient
    noise = jax.random.normal(rng, (setting.length, setting.sequences))
    noise = noise.at[1:].multiply(np.sqrt(1 - a**2))

    def step(x, noise):
        return (x := a * x + noise), x

    _, x = jax.lax.scan(step, jnp.zeros(setting.sequences), noise)
    x, one, variance = x.T, jnp.ones_like(x.T), 1 - a**2
    # log p(y | x) / p(y) = -log(variance) / 2 - (y - a x)^2 / (2 variance) + y^2 / 2
    z = jnp.stack([x, x**2, one], -1)
    constant = -np.log(variance) / 2 - (a * x) ** 2 / (2 * variance)
    parts = a * x / variance, (0.5 - 0.5 / variance) * one, constant
    return CPCOutputs(z, z, jnp.stack(parts, -1)[..., None, :])


@functools.partial(jax.jit, static_argnames=("setting", "draws"))
def draw_sums(setting: Setting, draws: int) -> OffsetSums:
    positions = Position.grid(setting.sequences, setting.length)

    def one_batch(rng):
        given = positions, setting.rule
        return cpc_loss(draw_outputs(rng, setting), *given, loss=setting.loss)[1]

    def one_draw(rng):
        sums = jax.vmap(one_batch)(jax.random.split(rng, setting.batches))
        return jax.tree.map(lambda x: x.sum((0, 1)), sums)

    rngs = jax.random.split(jax.random.key(0), draws)
    return jax.lax.map(one_draw, rngs, batch_size=50)


def coverage(sums: OffsetSums) -> float:
    track = Tracker(True)(jax.device_get(sums))
    mean = track.value.mean()
    return float(((track.low <= mean) & (mean <= track.high)).mean())


def main(argv: list[str]) -> None:
    del argv
    covered = []
    for name, setting in SETTINGS.items():
        covered.append(coverage(draw_sums(setting, flags.FLAGS.draws)))
        sys.stdout.write(f"{name:26}{covered[-1]:.3f}\n")
        sys.stdout.flush()
    sys.exit(min(covered) < MIN_COVERAGE)


if __name__ == "__main__":
    flags.DEFINE_integer("draws", 1500, "Draws of each setting.")
    app.run(main)
