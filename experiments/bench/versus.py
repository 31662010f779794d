"""The audio step and its parts against PyTorch's, each side in processes of its own, in turn.

Thread pools of two frameworks in one process slow each other, and a machine's speed drifts: rounds
alternate, and only what was timed in one round is divided.
"""

import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from cpc.types import UserError
from experiments.bench.process import ALLOCATOR
from experiments.bench.table import Row, Target

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = "CPC_TORCH_PYTHON"
PAPER = {
    "width": 512,
    "context_width": 256,
    "num_offsets": 12,
    "batch_size": 8,
    "window_samples": 20480,
    "num_groups": 1,
}
#: On an accelerator all of the paper's 8 devices are one: 64 windows, negatives of 8 each.
WHOLE = {"batch_size": 64, "num_groups": 8}
SIZES = {"the paper's size": PAPER, "the demo's size": {**PAPER, "width": 128}}
#: Largest ratio to torch, at the paper's size on a CPU.
TARGETS = {"step": 0.85, "context": 0.6, "criterion": 0.45}
CASES = {
    "step": "whole step",
    "encoder": "encoder",
    "context": "GRU",
    "criterion": "criterion over all candidates, predictions included",
}


def torch_rows(device: str, num_rounds: int, num_calls: int) -> list[Row]:
    """Rows of both sizes; one that says how to get them where torch is not importable."""
    python = find_torch()
    if python is None:
        text = f"not measured: torch is not importable here; name a Python that has it in ${PYTHON}"
        return [Row("against PyTorch", {"measured": False}, text)]
    rows, more = [], WHOLE if device == "gpu" else {}
    for size, sizes in SIZES.items():
        given = json.dumps({**sizes, **more, "device": device, "num_calls": num_calls})
        rounds = []
        for i in range(num_rounds):
            sides = {"cpc_jax": sys.executable, "cpc_torch": python}
            order = list(sides) if i % 2 == 0 else list(sides)[::-1]  # who comes second is warmer
            rounds.append({side: run_side(sides[side], side, given) for side in order})
        targets = TARGETS if sizes is PAPER and device in ("cpu", "auto") else {}
        rows += [
            compare(f"{title}, {size}", case, rounds, targets.get(case))
            for case, title in CASES.items()
        ]
    return rows


def find_torch() -> str | None:
    """The Python that has torch: the one that `$CPC_TORCH_PYTHON` names, or this one."""
    named = os.environ.get(PYTHON)
    if named:
        return named
    return sys.executable if importlib.util.find_spec("torch") else None


def run_side(python: str, side: str, given: str) -> dict[str, Any]:
    """What one process measured."""
    done = subprocess.run(
        [python, "-m", f"experiments.bench.{side}", given],
        cwd=ROOT,
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UserError(f"{python} could not time {side}: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(name: str, case: str, rounds: list[dict[str, Any]], most: float | None) -> Row:
    """A case: our time, work, fraction of the product's rate, memory, and the ratio to torch."""
    ours, others = ([r[side] for r in rounds] for side in ("cpc_jax", "cpc_torch"))
    flop = ours[0]["flop"]
    seconds = statistics.median(one["seconds"][case] for one in ours)
    fractions = [
        flop[case] / one["seconds"][case] * one["seconds"]["product"] / flop["product"]
        for one in ours
    ]
    ratios = [
        one["seconds"][case] / other["seconds"][case]
        for one, other in zip(ours, others, strict=True)
    ]
    figures: dict[str, Any] = {
        "milliseconds": 1e3 * seconds,
        "gflop": flop[case] / 1e9,
        "fraction_of_peak": statistics.median(fractions),
        "ratio_to_torch": statistics.median(ratios),
        "ratio_to_torch_min": min(ratios),
        "ratio_to_torch_max": max(ratios),
    }
    text = (
        "{:.1f} ms, {:.2f} GFLOP, {:.2f} of peak, {:.2f} of torch's time ({:.2f} to {:.2f})"
    ).format(*figures.values())
    if case == "step":
        peaks = {
            "peak_megabytes": statistics.median(one["peak_bytes"] for one in ours) / 1e6,
            "torch_peak_megabytes": statistics.median(one["peak_bytes"] for one in others) / 1e6,
        }
        figures |= {**peaks, "torch": others[0]["version"]}
        text += "; {:,.0f} MB, torch {:,.0f}".format(*peaks.values())
    target = Target("ratio_to_torch", most, at_least=False) if most else None
    return Row(name, figures, text, target)
