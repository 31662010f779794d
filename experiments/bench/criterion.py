"""InfoNCE over many candidates: its time and memory against PyTorch's and its products', sampling.

    CPC_TORCH_PYTHON=torchenv/bin/python python -m experiments.bench.criterion
    python -m experiments.bench.criterion --large

measures these rows alone, the latter at 131,072 candidates: minutes on two cores, and about 2 GB.
Where torch is importable neither here nor in the Python that $CPC_TORCH_PYTHON names, the ratios to
it are left out.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cpc.losses import cpc_loss, info_nce, largest_block
from cpc.negatives import excluding_sequence, uniform_draws
from cpc.types import CPCOutputs, Position
from experiments.bench.process import time_cases
from experiments.bench.table import Row, Target, format_table
from experiments.bench.versus import find_torch, run_side
from experiments.launch import keep_freed_memory

WIDTH, BLOCK = 256, 512
SIZES = (4096, 16384)
LARGE, LARGE_BYTES = 131_072, 2**30
#: Largest ratios at 16,384 candidates: to torch's time and memory, to the products' time.
JUDGED, TIME, MEMORY, PRODUCTS = SIZES[-1], 0.6, 0.04, 1.3
#: Windows, latents of each, offsets and negatives, sampled; largest ratio to gathering vectors.
SAMPLED, GATHER = (8, 128, 12, 128), 0.8


def criterion_rows(sizes: Sequence[int], num_rounds: int, num_calls: int) -> list[Row]:
    """Rows of each number of candidates, and of sampled negatives."""
    python = find_torch()
    rows = []
    for n in sizes:
        rounds = [run_round(n, python, num_calls, reverse=i % 2 == 1) for i in range(num_rounds)]
        rows += compare(n, rounds, judged=n == JUDGED)
    return [*rows, sampled_row(num_rounds * num_calls)]


def run_round(n: int, python: str | None, num_calls: int, reverse: bool) -> dict[str, Any]:
    """What each side measured, in processes one after the other."""
    given = json.dumps({"n": n, "d": WIDTH, "block": BLOCK, "num_calls": num_calls})
    sides = {"info_nce_jax": sys.executable, **({"info_nce_torch": python} if python else {})}
    order = list(sides)[::-1] if reverse else list(sides)  # who comes second is warmer
    return {side: run_side(sides[side], side, given) for side in order}


def compare(n: int, rounds: list[dict[str, Any]], judged: bool) -> list[Row]:
    """Time, memory, and their ratios: to the products alone and, where it is there, to torch."""
    ours = [one["info_nce_jax"] for one in rounds]
    seconds = [one["seconds"]["info_nce"] for one in ours]
    to_products = [one["seconds"]["info_nce"] / one["seconds"]["products"] for one in ours]
    figures: dict[str, Any] = {
        "milliseconds": 1e3 * statistics.median(seconds),
        "megabytes": statistics.median(one["bytes"] for one in ours) / 1e6,
        "ratio_to_products": statistics.median(to_products),
    }
    name = f"InfoNCE over {n:,} of width {WIDTH}"
    target = Target("ratio_to_products", PRODUCTS, at_least=False) if judged else None
    text = "{:.0f} ms, {:.0f} MB, {:.2f} of its products' time".format(*figures.values())
    rows = [Row(name, figures, text, target)]
    if "info_nce_torch" not in rounds[0]:
        return rows
    for word, most, read in (
        ("time", TIME, lambda side: side["seconds"]["info_nce"]),
        ("memory", MEMORY, lambda side: side["bytes"]),
    ):
        ratios = [read(one["info_nce_jax"]) / read(one["info_nce_torch"]) for one in rounds]
        theirs = statistics.median(read(one["info_nce_torch"]) for one in rounds)
        ratio = statistics.median(ratios)
        found = {"ratio_to_torch": ratio, f"torch_{word}": theirs}
        target = Target("ratio_to_torch", most, at_least=False) if judged else None
        text = f"{ratio:.3f} of torch's ({min(ratios):.3f} to {max(ratios):.3f})"
        rows.append(Row(f"  its {word}", found, text, target))
    return rows


def large_row() -> Row:
    """Value and gradient over 131,072 candidates, once."""
    block = min(BLOCK, largest_block(LARGE, LARGE_BYTES))
    given = json.dumps({"n": LARGE, "d": WIDTH, "block": block, "num_calls": 0})
    done = run_side(sys.executable, "info_nce_jax", given)
    figures = {"seconds": done["seconds"]["info_nce"], "megabytes": done["bytes"] / 1e6}
    text = "{:.0f} s, {:.0f} MB".format(*figures.values())
    return Row(f"InfoNCE over {LARGE:,} of width {WIDTH}", figures, text)


def sampled_row(num_calls: int) -> Row:
    """Negatives sampled among whole rows of scores, against gathering their vectors."""
    b, t, num_offsets, num_negatives = SAMPLED
    keys = jax.random.split(jax.random.key(0), 3)
    z = jax.random.normal(keys[0], (b, t, WIDTH))
    predictions = WIDTH**-0.5 * jax.random.normal(keys[1], (b, t, num_offsets, WIDTH))
    zero = jnp.zeros((1, 1), jnp.int32)
    positions = Position(jnp.arange(b)[:, None], jnp.arange(t)[None], zero, zero)
    choose = uniform_draws(num_negatives)

    def by_scores(z, predictions, rng):
        outputs = CPCOutputs(z, z, predictions)
        return cpc_loss(outputs, positions, excluding_sequence, choose=choose, rng=rng)[0]

    def by_vectors(z, predictions, rng):
        candidates, total = z.reshape(b * t, WIDTH), 0.0
        first = jnp.arange(b)[:, None, None] * t
        for k in range(1, num_offsets + 1):
            shape = (b, t - k, num_negatives)
            drawn = jax.random.randint(jax.random.fold_in(rng, k), shape, t, b * t)
            negatives = candidates[(first + drawn) % (b * t)]  # of other sequences
            query = predictions[:, : t - k, k - 1]
            scores = jnp.einsum("btd,btnd->btn", query, negatives).reshape(-1, num_negatives)
            positive = (query * z[:, k:]).sum(-1).ravel()
            total += info_nce(positive, scores).mean()
        return total

    def case(loss):
        run = jax.jit(jax.value_and_grad(loss, (0, 1)))
        return lambda: jax.block_until_ready(run(z, predictions, keys[2]))

    seconds = time_cases({"scores": case(by_scores), "vectors": case(by_vectors)}, num_calls)
    ratio = seconds["scores"] / seconds["vectors"]
    figures = {"milliseconds": 1e3 * seconds["scores"], "ratio_to_gathering": ratio}
    text = f"{1e3 * seconds['scores']:.0f} ms, {ratio:.2f} of gathering vectors"
    name = f"{num_negatives} sampled negatives"
    return Row(name, figures, text, Target("ratio_to_gathering", GATHER, at_least=False))


if __name__ == "__main__":
    keep_freed_memory()
    print(format_table([large_row()] if "--large" in sys.argv[1:] else criterion_rows(SIZES, 3, 3)))
