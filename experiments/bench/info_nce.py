"""InfoNCE over many candidates: time and memory against PyTorch's and against its products alone.

`python -m experiments.bench.info_nce SIZES` is our side of the comparison; it prints JSON.
"""

import json
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cpc.losses import streaming_info_nce
from cpc.losses.tiles import block_size
from cpc.negatives import batch
from cpc.train import choose_devices
from cpc.types import Position
from experiments.bench.step import blocking
from experiments.bench.timing import (
    Row,
    Target,
    median_times,
    peak_bytes,
    ratios,
    read_sizes,
    summarize,
    time_rounds,
)
from experiments.bench.versus import find_torch, run_rounds
from experiments.command.cluster import keep_freed_memory

WIDTH = 256
SIZES = (4096, 16384)
#: Largest ratios at 16,384 candidates: to torch's time and memory, to the products' time.
JUDGED, TIME, MEMORY, PRODUCTS = SIZES[-1], 0.6, 0.04, 1.3


def info_nce_rows(device: str, sizes: Sequence[int], num_rounds: int, num_calls: int) -> list[Row]:
    """Return rows of each number of candidates, beside torch's if there is a torch."""
    python, rows = find_torch(device), []
    for n in sizes:
        given = {"n": n, "d": WIDTH, "device": device, "num_calls": num_calls}
        rows += compare(n, run_rounds("info_nce", "info_nce", python, given, num_rounds))
    return rows


def compare(n: int, rounds: list[dict[str, Any]]) -> list[Row]:
    """Return time, memory, and their ratios to the products alone and to torch's."""

    def at_most(figure, bound):
        return Target(figure, bound, at_least=False) if n == JUDGED else None

    ours = [one["ours"] for one in rounds]
    to_products = [one["seconds"]["info_nce"] / one["seconds"]["products"] for one in ours]
    figures: dict[str, Any] = {
        "milliseconds": 1e3 * statistics.median(one["seconds"]["info_nce"] for one in ours),
        "megabytes": statistics.median(one["bytes"] for one in ours) / 1e6,
        "ratio_to_products": statistics.median(to_products),
    }
    text = "{:,.1f} ms, {:,.0f} MB, {:.2f} of its products' time".format(*figures.values())
    name = f"InfoNCE over {n:,} of width {WIDTH}"
    rows = [Row(name, figures, text, at_most("ratio_to_products", PRODUCTS))]
    if "torch" not in rounds[0]:
        return rows
    for word, most, read in (
        ("time", TIME, lambda side: side["seconds"]["info_nce"]),
        ("memory", MEMORY, lambda side: side["bytes"]),
    ):
        mine, theirs = ([read(one[side]) for one in rounds] for side in ("ours", "torch"))
        found = summarize("ratio_to_torch", ratios(mine, theirs))
        text = "{:.3f} of torch's ({:.3f} to {:.3f})".format(*found.values())
        found[f"torch_{word}"] = statistics.median(theirs)
        rows.append(Row(f"  its {word}", found, text, at_most("ratio_to_torch", most)))
    return rows


def measure(sizes: dict[str, Any]) -> dict[str, Any]:
    """Measure value and gradient of the mean loss, and its products alone; off the CPU in bfloat16.

    Returns: seconds by case, and the bytes of the loss.
    """
    n, d, device = sizes["n"], sizes["d"], choose_devices(sizes["device"])[0]
    with jax.default_device(device):
        keys = jax.random.split(jax.random.key(0))
        dtype = jnp.float32 if device.platform == "cpu" else jnp.bfloat16
        x: Any = tuple(d**-0.25 * jax.random.normal(key, (n, d), dtype) for key in keys)
        run = jax.jit(make_info_nce(n)).lower(*x).compile()
        products = jax.jit(make_products(min(n, block_size(n))))
        cases = {"info_nce": blocking(lambda: run(*x)), "products": blocking(lambda: products(*x))}
        before = peak_bytes(device)
        cases["info_nce"]()
        planned: Any = run.memory_analysis()
        # Memory that was freed before may be used again, and would then not show.
        needed = planned.temp_size_in_bytes + planned.output_size_in_bytes
        num_bytes = max(peak_bytes(device) - before, needed)
        seconds = median_times(time_rounds(cases, sizes["num_calls"]))
    return {"seconds": seconds, "bytes": num_bytes}


def make_info_nce(n: int):
    """Return value and gradient of the loss of n sequences, with all others as negatives."""
    zero = jnp.zeros(n, jnp.int32)
    positions = Position(jnp.arange(n, dtype=jnp.int32), zero, zero, zero)

    def loss(queries, keys):
        losses, _ = streaming_info_nce(queries, keys, positions, positions, batch, 0)
        return losses.mean()

    return jax.value_and_grad(loss, (0, 1))


def make_products(block: int):
    """Return the three products alone, block by block."""

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
