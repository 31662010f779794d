"""The audio step as the experiment makes it, timed in a process of its own beside torch's.

The bench runs `python -m experiments.bench.cpc_jax` with sizes in json; it prints json.
"""

import json
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from configs import audio_voices_paper
from cpc import data
from cpc.models import GRU, gru
from cpc.train import choose_devices, make_mesh, put_batch
from experiments.bench.flop import Flop, count_flop
from experiments.bench.process import peak_bytes, read_sizes, time_cases
from experiments.bench.step import PRODUCT_FLOP, PRODUCT_SIZE, make_step
from experiments.command import cluster
from experiments.command.config import Config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.training.contrastive import interpret


def main() -> None:
    """Time the step, its parts, and the matrix product that is the machine's ceiling."""
    sizes = read_sizes()
    config = make_config(sizes)
    cluster.start(sizes["device"])
    mesh = make_mesh(1, choose_devices(sizes["device"]))  # torch has one, too
    problem = audio.make_problem(interpret(audio, config), make_sound(config))
    batch = put_batch(problem.draw(0), mesh)
    step = make_step(problem, mesh, batch)
    advance = blocking(lambda: step.advance(batch))
    time_cases({"step": advance}, 1)
    peak = peak_bytes(mesh.devices.flat[0])

    factor = jax.random.normal(jax.random.key(0), (PRODUCT_SIZE, PRODUCT_SIZE))
    factor, multiply = factor.astype(config.model.dtype), jax.jit(jnp.matmul)
    cases = {
        "step": advance,
        "encoder": blocking(step.parts["encoder"]),
        "context": blocking(context_part(config, step.params["model"]["context"])),
        "criterion": blocking(step.parts["criterion"]),
        "product": blocking(lambda: multiply(factor, factor)),
        **unrolled_contexts(config, step.params["model"]["context"], sizes["unrolled"]),
    }
    seconds = time_cases(cases, sizes["num_calls"])
    flop = count_flop(
        step.params["model"],
        problem.model.module.encoder,
        config.data.batch_size,
        config.data.window_samples,
        problem.plan.geometry.branches[0].offsets,
        sizes["num_shards"],
    )
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "flop": work(flop)}))


def make_config(sizes: dict[str, Any]) -> Config:
    """The preset of the paper's network at these sizes, its scores those of torch's side."""
    config = audio_voices_paper.get_config()
    for section in (config.model, config.data):
        section.update({name: value for name, value in sizes.items() if name in section})
    config.negatives.update(shards=sizes["num_shards"], temperature=1.0)
    config.loss.cosine = False  # the paper's dot products: cosines are another, heavier criterion
    config.model.dtype = "float32" if sizes["device"] == "cpu" else "bfloat16"
    config.evaluate.num_windows = 0
    return config


def make_sound(config: Config) -> AudioData:
    """One window of made-up sound for each row of a batch."""
    made = data.make_synthetic(
        num_speakers=2,
        utterances_per_speaker=config.data.batch_size,
        seconds=config.data.window_samples / data.SAMPLE_RATE_HZ,
        chain=data.phone_chain(4),
        seed=0,
    )
    return AudioData(made.recordings, made.recordings, {})


def context_part(config: Config, params):
    """Value and gradient of the GRU alone, by latents and weights."""
    shape = (config.data.batch_size, audio.num_latents(config), config.model.width)
    z = jax.random.normal(jax.random.key(0), shape)
    module = GRU(config.model.context_width, dtype=jnp.dtype(config.model.dtype))

    @jax.jit
    @jax.value_and_grad
    def energy(inputs):
        params, z = inputs
        c = module.apply({"params": params}, z)
        return jnp.square(jnp.asarray(c)).sum()

    return lambda: energy((params, z))


def unrolled_contexts(config: Config, params, counts: list[int]):
    """The same by so many steps of the GRU in one turn of its loops."""
    cases = {}
    for count in counts:
        call = cases[f"{count} steps at once"] = blocking(context_part(config, params))
        with mock.patch.object(gru, "steps_at_once", lambda count=count: count):
            call()  # compiles
    return cases


def blocking(call):
    """The call, until its result is there."""
    return lambda: jax.block_until_ready(call())


def work(flop: Flop) -> dict[str, int]:
    """Operations of each case."""
    criterion = flop.predictor + flop.criterion
    parts = {"encoder": flop.encoder, "context": flop.context, "criterion": criterion}
    return {"step": sum(flop), **parts, "product": PRODUCT_FLOP}


if __name__ == "__main__":
    cluster.keep_freed_memory()
    main()
