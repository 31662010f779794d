"""InfoNCE over many candidates: its time and memory against PyTorch's and its products', sampling.

Where torch is importable neither here nor in the Python that $CPC_TORCH_PYTHON names, the ratios to
it are left out.
"""

import functools
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cpc.losses import cpc_loss, info_nce
from cpc.negatives import excluding_sequence, uniform_draws, uniform_subset
from cpc.types import CPCOutputs, Position
from experiments.bench.process import time_cases
from experiments.bench.table import Row, Target
from experiments.bench.versus import find_torch, run_side

WIDTH = 256
SIZES = (4096, 16384)
#: Candidates of the part that takes long: of 24 GiB and two cores, and of one GPU of 80 GiB.
LARGE, LARGE_OFF_CPU = 131_072, 1_048_576
#: Largest ratios at 16,384 candidates: to torch's time and memory, to the products' time.
JUDGED, TIME, MEMORY, PRODUCTS = SIZES[-1], 0.6, 0.04, 1.3
#: Windows, latents of each, offsets and negatives, sampled; largest ratio to gathering vectors.
SAMPLED, GATHER = (8, 128, 12, 128), 0.8


def criterion_rows(device: str, sizes: Sequence[int], num_rounds: int, num_calls: int) -> list[Row]:
    """Rows of each number of candidates, and of sampled negatives."""
    python = find_torch(device)
    rows = []
    for n in sizes:
        given = json.dumps({"n": n, "d": WIDTH, "device": device, "num_calls": num_calls})
        rounds = [run_round(given, python, reverse=i % 2 == 1) for i in range(num_rounds)]
        rows += compare(n, rounds, judged=n == JUDGED)
    return [*rows, *sampled_rows(num_rounds * num_calls)]


def run_round(given: str, python: str | None, reverse: bool) -> dict[str, Any]:
    """What each side measured, in processes one after the other."""
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
        "megabytes": statistics.median(one["bytes"]["info_nce"] for one in ours) / 1e6,
        "ratio_to_products": statistics.median(to_products),
    }
    text = "{:,.1f} ms, {:,.0f} MB, {:.2f} of its products' time".format(*figures.values())
    target = Target("ratio_to_products", PRODUCTS, at_least=False) if judged else None
    rows = [Row(name_row(n), figures, text, target)]
    if "info_nce_torch" not in rounds[0]:
        return rows
    for word, most, read in (
        ("time", TIME, lambda side: side["seconds"]["info_nce"]),
        ("memory", MEMORY, lambda side: side["bytes"]["info_nce"]),
    ):
        ratios = [read(one["info_nce_jax"]) / read(one["info_nce_torch"]) for one in rounds]
        theirs = statistics.median(read(one["info_nce_torch"]) for one in rounds)
        ratio = statistics.median(ratios)
        found = {"ratio_to_torch": ratio, f"torch_{word}": theirs}
        target = Target("ratio_to_torch", most, at_least=False) if judged else None
        text = f"{ratio:.3f} of torch's ({min(ratios):.3f} to {max(ratios):.3f})"
        rows.append(Row(f"  its {word}", found, text, target))
    return rows


def large_rows(device: str) -> list[Row]:
    """Value and gradient over as many candidates as the device should bear, once."""
    n = LARGE if device == "cpu" else LARGE_OFF_CPU
    given = json.dumps({"n": n, "d": WIDTH, "device": device, "num_calls": 0})
    done = run_side(sys.executable, "info_nce_jax", given)
    figures = {"seconds": done["seconds"]["info_nce"], "megabytes": done["bytes"]["info_nce"] / 1e6}
    return [Row(name_row(n), figures, "{:,.1f} s, {:,.0f} MB".format(*figures.values()))]


def name_row(n: int) -> str:
    """Return the name of the row of InfoNCE over n candidates."""
    return f"InfoNCE over {n:,} of width {WIDTH}"


def sampled_rows(num_calls: int) -> list[Row]:
    """Negatives sampled among whole rows of scores, against gathering their vectors.

    Without repeats, as the training samples, and drawn independently.
    """
    b, t, num_offsets, num_negatives = SAMPLED
    keys = jax.random.split(jax.random.key(0), 3)
    z = jax.random.normal(keys[0], (b, t, WIDTH))
    predictions = WIDTH**-0.5 * jax.random.normal(keys[1], (b, t, num_offsets, WIDTH))
    positions = Position.grid(b, t)

    def by_scores(choose, z, predictions, rng):
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

    choices = {"subset": uniform_subset(num_negatives), "draws": uniform_draws(num_negatives)}
    cases = {name: case(functools.partial(by_scores, choose)) for name, choose in choices.items()}
    seconds = time_cases({**cases, "vectors": case(by_vectors)}, num_calls)
    rows = []
    for name in choices:
        ratio = seconds[name] / seconds["vectors"]
        figures = {"milliseconds": 1e3 * seconds[name], "ratio_to_gathering": ratio}
        text = f"{1e3 * seconds[name]:.0f} ms, {ratio:.2f} of gathering vectors"
        title = f"{num_negatives} sampled negatives, {name} of whole rows of scores"
        rows.append(Row(title, figures, text, Target("ratio_to_gathering", GATHER, at_least=False)))
    return rows
