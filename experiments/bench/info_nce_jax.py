"""Streaming InfoNCE over N candidates, timed in a process of its own beside torch's.

The bench runs `python -m experiments.bench.info_nce_jax` with sizes in json; it prints json.
"""

import json
import time
from typing import Any

import jax
import jax.numpy as jnp

from cpc.losses import streaming_info_nce
from cpc.negatives import batch
from cpc.types import Position
from experiments.bench.process import peak_bytes, read_sizes, time_cases
from experiments.launch import keep_freed_memory


def main() -> None:
    """Value and gradient of the mean loss, and its three products alone.

    Without calls to time, the loss is computed once and its first run is what counts.
    """
    sizes = read_sizes()
    n, d, block = sizes["n"], sizes["d"], sizes["block"]
    keys = jax.random.split(jax.random.key(0))
    x: Any = tuple(d**-0.25 * jax.random.normal(key, (n, d)) for key in keys)
    info_nce = jax.jit(make_info_nce(n, block, sizes.get("columns"))).lower(*x).compile()
    planned: Any = info_nce.memory_analysis()
    before = peak_bytes()

    def call() -> Any:
        return jax.block_until_ready(info_nce(*x))

    begin = time.perf_counter()
    call()
    seconds = {"info_nce": time.perf_counter() - begin}
    # Freed memory of the compiler may be used again, and would then not show.
    bytes_used = max(
        peak_bytes() - before, planned.temp_size_in_bytes + planned.output_size_in_bytes
    )
    if sizes["num_calls"]:
        products = jax.jit(make_products(block))
        cases = {"info_nce": call, "products": lambda: jax.block_until_ready(products(*x))}
        seconds = time_cases(cases, sizes["num_calls"])
    print(json.dumps({"seconds": seconds, "bytes": bytes_used}))


def make_info_nce(n: int, block: int, columns: int | None):
    """Value and gradient: latents of n sequences, each other one a negative."""
    zero = jnp.zeros(n, jnp.int32)
    places = Position(jnp.arange(n, dtype=jnp.int32), zero, zero, zero)

    def loss(queries, keys):
        losses, _ = streaming_info_nce(
            queries, keys, places, places, batch, 0, block=block, columns=columns
        )
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
    main()
