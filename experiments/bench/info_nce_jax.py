"""Streaming InfoNCE over N candidates, timed in a process of its own beside torch's.

The bench runs `python -m experiments.bench.info_nce_jax` with sizes in json; it prints json.
"""

import functools
import json
import time
from typing import Any

import jax
import jax.numpy as jnp

from cpc.losses import streaming_info_nce
from cpc.losses.tiles import block_size
from cpc.negatives import batch
from cpc.train import choose_devices
from cpc.types import Position
from experiments.bench.process import peak_bytes, read_sizes, time_cases
from experiments.command.cluster import keep_freed_memory


def measure(sizes: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Seconds and bytes of value and gradient of the mean loss; seconds of its products alone.

    Off the CPU in bfloat16. Without calls to time, the loss is computed once and its first run is
    what counts.
    """
    n, d, device = sizes["n"], sizes["d"], choose_devices(sizes["device"])[0]
    with jax.default_device(device):
        keys = jax.random.split(jax.random.key(0))
        dtype = jnp.float32 if device.platform == "cpu" else jnp.bfloat16
        x: Any = tuple(d**-0.25 * jax.random.normal(key, (n, d), dtype) for key in keys)
        run = jax.jit(make_info_nce(n)).lower(*x).compile()
        planned: Any = run.memory_analysis()
        calls = {"info_nce": functools.partial(call, run, x)}
        before, begin = peak_bytes(device), time.perf_counter()
        calls["info_nce"]()
        seconds = {"info_nce": time.perf_counter() - begin}
        # Memory that was freed before may be used again, and would then not show.
        needed = planned.temp_size_in_bytes + planned.output_size_in_bytes
        num_bytes = {"info_nce": float(max(peak_bytes(device) - before, needed))}
        if sizes["num_calls"]:
            products = jax.jit(make_products(min(n, block_size(n))))
            calls["products"] = functools.partial(call, products, x)
            seconds = time_cases(calls, sizes["num_calls"])
    return {"seconds": seconds, "bytes": num_bytes}


def call(run, x):
    """The result, when it is there."""
    return jax.block_until_ready(run(*x))


def make_info_nce(n: int):
    """Value and gradient: latents of n sequences, each other one a negative."""
    zero = jnp.zeros(n, jnp.int32)
    positions = Position(jnp.arange(n, dtype=jnp.int32), zero, zero, zero)

    def loss(queries, keys):
        losses, _ = streaming_info_nce(queries, keys, positions, positions, batch, 0)
        return losses.mean()

    return jax.value_and_grad(loss, (0, 1))


def make_products(block: int):
    """The three products, block by block, and nothing between them."""

    def products(queries, keys):
        def one_block(dkeys, q):
            scores = q @ keys.T
            return dkeys + scores.T @ q, scores @ keys

        return jax.lax.scan(
            one_block, jnp.zeros_like(keys), queries.reshape(-1, block, keys.shape[1])
        )

    return products


if __name__ == "__main__":
    keep_freed_memory()
    print(json.dumps(measure(read_sizes())))
