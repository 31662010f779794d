"""Memory of a training step: the network as a whole, all modules at once, and one by itself.

python -m experiments.bench.modules

What XLA says a compiled gradient needs beside its inputs and results: nothing is trained.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from configs import audio_voices_greedy
from cpc.types import Batch
from experiments.command.config import Config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.model import (
    build_model,
    name_branches,
    split_branches,
)
from experiments.training.contrastive import interpret
from experiments.training.objective import objective_loss


def temporary_bytes(config: Config, only: int | None = None) -> int:
    """Return the temporary memory of a gradient, of one branch's loss alone or of all."""
    model, plan = build_model(config), interpret(audio, config)
    if only is not None:
        geometry = plan.geometry
        geometry = geometry._replace(branches=geometry.branches[only : only + 1])
        plan = dataclasses.replace(plan, geometry=geometry)
    rows = jnp.arange(config.data.batch_size)
    x = jax.ShapeDtypeStruct((len(rows), config.data.window_samples), jnp.float32)

    def loss(params, x):
        batch: Batch = {"x": x, "sequence": rows, "speaker": rows, "sample": rows * 2**20}
        outputs, _ = model.apply({"params": params}, batch, True)
        branches = split_branches(model.module, outputs, batch)
        chosen = branches if only is None else [branches[only]]
        return objective_loss(plan, {}, {}, chosen, jax.random.key(0))[0]

    params = jax.eval_shape(model.init, jax.random.key(0), {"x": x})["params"]
    analysis: Any = jax.jit(jax.grad(loss)).lower(params, x).compile().memory_analysis()
    return analysis.temp_size_in_bytes


def main() -> None:
    """Print a row for each way to train."""
    config = audio_voices_greedy.get_config()
    names = name_branches(build_model(config).module)
    rows = {f"{len(names)} modules at once": temporary_bytes(config)}
    rows |= {f"{name} alone": temporary_bytes(config, i) for i, name in enumerate(names)}
    config.model.modules = 1
    rows = {"the network as a whole": temporary_bytes(config), **rows}
    for name, number in rows.items():
        print(f"{name:24} {number / 2**20:8.1f} MiB")


if __name__ == "__main__":
    main()
