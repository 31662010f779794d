"""Comparison of the audio step, its parts and InfoNCE over many candidates with PyTorch.

Thread pools of two frameworks in one process slow each other down, and the speed of a machine
drifts. cpc and torch therefore alternate in separate processes, and only times of the same round
are divided. `python -m experiments.bench.versus SIZES` runs the side of cpc and prints JSON.
"""

import functools
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from configs import audio_voices_paper
from cpc import data
from cpc.losses import streaming_info_nce
from cpc.losses.tiles import block_size
from cpc.models import GRU
from cpc.negatives import batch as batch_rule
from cpc.train import choose_devices, make_mesh, put_batch
from cpc.types import Position, UserError
from experiments.bench import timing
from experiments.bench.step import PRODUCT_FLOP, blocking, count_work, make_product, make_step
from experiments.bench.timing import Row
from experiments.command import cluster
from experiments.command.config import Config
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.training.contrastive import interpret

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = "CPC_TORCH_PYTHON"
PAPER = {
    "width": 512, "context_width": 256, "num_offsets": 12, "batch_size": 8,
    "window_samples": 20480, "num_shards": 1,
}  # fmt: skip
#: Sizes on one accelerator, with the batch of the paper's 8 devices and negatives within a device.
WHOLE = {"batch_size": 64, "num_shards": 8}
SIZES = {"the paper's size": PAPER, "the demo's size": {**PAPER, "width": 128}}
#: Targets for the step at the paper's size, and largest ratios to torch, by kind of device.
STEP = {"cpu": "fraction_of_peak >= 0.65", "gpu": "milliseconds <= 5"}
RATIOS = {"cpu": {"step": 0.85, "context": 0.6, "criterion": 0.45}, "gpu": {"step": 1 / 3}}
CASES = {
    "step": "whole step",
    "encoder": "encoder",
    "context": "GRU",
    "criterion": "criterion over all candidates, predictions included",
}

WIDTH = 256
NUM_CANDIDATES = (4096, 16384)
#: Largest ratios at 16,384 candidates, to time and memory of torch, and to the products' time.
JUDGED, TIME, MEMORY, PRODUCTS = NUM_CANDIDATES[-1], 0.6, 0.04, 1.3


def torch_rows(device: str, num_rounds: int, num_calls: int, alone: bool) -> list[Row]:
    """Return rows that compare the step and its parts with torch at both sizes.

    If torch is missing, the first row is advice, and rows for cpc follow only if `alone`.
    """
    python, rows = find_torch(device), []
    if python is None:
        text = f"not measured: torch for {device} is missing: set ${PYTHON} to its Python"
        rows.append(Row("against PyTorch", {"measured": False}, text))
        if not alone:
            return rows
    for size, sizes in SIZES.items():
        given = {**sizes, **({} if device == "cpu" else WHOLE), "device": device}
        rounds = run_rounds("step", python, {**given, "num_calls": num_calls}, num_rounds)
        is_judged = sizes is PAPER
        for case, title in CASES.items():
            target = STEP.get(device, "") if is_judged and case == "step" else ""
            rows.append(own_row(f"{title}, {size}", case, rounds, target))
            if python:
                most = RATIOS.get(device, {}).get(case) if is_judged else None
                rows.append(ratio_row(f"{title} to torch's, {size}", case, rounds, most))
    return rows


def find_torch(device: str) -> str | None:
    """Return a Python whose torch supports a device, `$CPC_TORCH_PYTHON` or this one, or None."""
    named = os.environ.get(PYTHON)
    python = named or (sys.executable if importlib.util.find_spec("torch") else None)
    if device == "cpu" or python is None:
        return python
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    drives = device == "gpu" and not subprocess.run([python, "-c", code], check=False).returncode
    return python if drives else None


def run_rounds(
    case: str, python: str | None, sizes: dict[str, Any], num_rounds: int
) -> list[dict[str, Any]]:
    """Run both sides of a case alternately, and return their figures by round."""
    sides = {"ours": (sys.executable, "versus")}
    if python:
        sides["torch"] = (python, "by_torch")
    given, rounds = json.dumps({**sizes, "case": case}), []
    for i in range(num_rounds):
        order = list(sides) if i % 2 == 0 else list(sides)[::-1]  # the second has warm caches
        rounds.append({side: run_side(*sides[side], given) for side in order})
    return rounds


def run_side(python: str, side: str, given: str) -> dict[str, Any]:
    """Run one side of a case in its own process, and return its figures."""
    done = subprocess.run(
        [python, "-m", f"experiments.bench.{side}", given], cwd=ROOT,
        env={**os.environ, **timing.ALLOCATOR}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UserError(f"{python} could not time {side}: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def own_row(name: str, case: str, rounds: list[dict[str, Any]], target: str = "") -> Row:
    """Return the row of a case, with time, FLOP, fraction of peak and, for the step, memory."""
    ours = [one["ours"] for one in rounds]
    seconds, product = ([one["seconds"][key] for one in ours] for key in (case, "product"))
    flop = ours[0]["flop"]
    row = timing.work_row(name, seconds, product, (flop[case], flop["product"]), target)
    if case != "step":
        return row
    peak = statistics.median(one["peak_bytes"] for one in ours) / 1e6
    figures = {**row.figures, "peak_megabytes": peak}
    return row._replace(figures=figures, text=f"{row.text}, {peak:,.0f} MB")


def ratio_row(name: str, case: str, rounds: list[dict[str, Any]], most: float | None) -> Row:
    """Return a row with our time relative to torch's and, for the step, torch's memory."""
    ours, theirs = ([one[side]["seconds"][case] for one in rounds] for side in ("ours", "torch"))
    figures: dict[str, Any] = timing.summarize("ratio_to_torch", timing.ratios(ours, theirs))
    text = "{:.2f} of torch's ({:.2f} to {:.2f})".format(*figures.values())
    figures["torch"] = rounds[0]["torch"]["version"]
    if case == "step":
        peak = statistics.median(one["torch"]["peak_bytes"] for one in rounds)
        figures["torch_peak_megabytes"] = peak / 1e6
        text += f"; torch {figures['torch_peak_megabytes']:,.0f} MB"
    return Row(name, figures, text, f"ratio_to_torch <= {most:g}" if most else "")


def info_nce_rows(device: str, sizes: Sequence[int], num_rounds: int, num_calls: int) -> list[Row]:
    """Return rows for each number of candidates, compared with torch if available."""
    python, rows = find_torch(device), []
    for n in sizes:
        given = {"n": n, "d": WIDTH, "device": device, "num_calls": num_calls}
        rows += compare_info_nce(n, run_rounds("info_nce", python, given, num_rounds))
    return rows


def compare_info_nce(n: int, rounds: list[dict[str, Any]]) -> list[Row]:
    """Return rows for time and memory, relative to the products alone and to torch."""

    def at_most(figure, bound):
        return f"{figure} <= {bound:g}" if n == JUDGED else ""

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
        found = timing.summarize("ratio_to_torch", timing.ratios(mine, theirs))
        text = "{:.3f} of torch's ({:.3f} to {:.3f})".format(*found.values())
        found[f"torch_{word}"] = statistics.median(theirs)
        rows.append(Row(f"  its {word}", found, text, at_most("ratio_to_torch", most)))
    return rows


def measure_step(sizes: dict[str, Any]) -> dict[str, Any]:
    """Time the step, its parts, and the matrix product that defines the peak rate."""
    config = make_config(sizes)
    cluster.start(sizes["device"])
    mesh = make_mesh(1, choose_devices(sizes["device"]))  # torch also uses one device
    problem = audio.make_problem(interpret(audio, config), make_sound(config))
    batch = put_batch(problem.draw(0), mesh)
    step = make_step(problem, mesh, batch)
    advance = blocking(lambda: step.advance(batch))
    timing.time_rounds({"step": advance}, 1)
    peak = timing.peak_bytes(mesh.devices.flat[0])
    cases = {
        "step": advance,
        "encoder": blocking(step.parts["encoder"]),
        "context": blocking(context_part(config, step.params["model"]["context"])),
        "criterion": blocking(step.parts["criterion"]),
        "product": blocking(make_product(config.model.dtype)),
    }
    seconds = timing.median_times(timing.time_rounds(cases, sizes["num_calls"]))
    work = {**count_work(config, problem, step.params["model"]), "product": PRODUCT_FLOP}
    return {"seconds": seconds, "peak_bytes": peak, "flop": {case: work[case] for case in cases}}


def make_config(sizes: dict[str, Any]) -> Config:
    """Return the config of the paper's network with the given sizes, and scores as in torch."""
    config = audio_voices_paper.get_config()
    for section in (config.model, config.data):
        section.update({name: value for name, value in sizes.items() if name in section})
    config.negatives.update(shards=sizes["num_shards"], temperature=1.0)
    config.loss.cosine = False  # the paper's dot products, which are cheaper than cosines
    config.model.dtype = "float32" if sizes["device"] == "cpu" else "bfloat16"
    config.evaluate.num_windows = 0
    return config


def make_sound(config: Config) -> AudioData:
    """Return a window of synthetic sound for each row of a batch."""
    made = data.make_synthetic(
        num_speakers=2,
        utterances_per_speaker=config.data.batch_size,
        seconds=config.data.window_samples / data.SAMPLE_RATE_HZ,
        chain=data.phone_chain(4),
        seed=0,
    )
    return AudioData(made.recordings, made.recordings, {})


def context_part(config: Config, params):
    """Return a function that computes the GRU's value, and its gradient in latents and weights."""
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


def measure_info_nce(sizes: dict[str, Any]) -> dict[str, Any]:
    """Measure time and memory of the mean loss with gradient, and the time of its products."""
    n, d, device = sizes["n"], sizes["d"], choose_devices(sizes["device"])[0]
    with jax.default_device(device):
        keys = jax.random.split(jax.random.key(0))
        dtype = jnp.float32 if device.platform == "cpu" else jnp.bfloat16
        x: Any = tuple(d**-0.25 * jax.random.normal(key, (n, d), dtype) for key in keys)
        zero = jnp.zeros(n, jnp.int32)
        positions = Position(jnp.arange(n, dtype=jnp.int32), zero, zero, zero)

        @jax.jit
        @functools.partial(jax.value_and_grad, argnums=(0, 1))
        def info_nce(queries, keys):
            losses, _ = streaming_info_nce(queries, keys, positions, positions, batch_rule, 0)
            return losses.mean()

        run, products = info_nce.lower(*x).compile(), jax.jit(compute_products)
        cases = {"info_nce": blocking(lambda: run(*x)), "products": blocking(lambda: products(*x))}
        before = timing.peak_bytes(device)
        cases["info_nce"]()
        planned: Any = run.memory_analysis()
        # If the loss reuses freed memory, the peak does not rise.
        needed = planned.temp_size_in_bytes + planned.output_size_in_bytes
        num_bytes = max(timing.peak_bytes(device) - before, needed)
        seconds = timing.median_times(timing.time_rounds(cases, sizes["num_calls"]))
    return {"seconds": seconds, "bytes": num_bytes}


def compute_products(queries: jax.Array, keys: jax.Array):
    """Compute the three products of the loss, block by block."""

    def one_block(dkeys, q):
        scores = q @ keys.T
        return dkeys + scores.T @ q, scores @ keys

    n, d = keys.shape
    return jax.lax.scan(
        one_block, jnp.zeros_like(keys), queries.reshape(-1, min(n, block_size(n)), d)
    )


if __name__ == "__main__":
    cluster.keep_freed_memory()
    SIDE = timing.read_sizes()
    print(json.dumps({"step": measure_step, "info_nce": measure_info_nce}[SIDE["case"]](SIDE)))
