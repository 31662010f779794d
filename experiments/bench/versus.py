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
    "num_shards": 1,
}
#: On an accelerator all of the paper's 8 devices are one: 64 windows, negatives of 8 each.
WHOLE = {"batch_size": 64, "num_shards": 8}
SIZES = {"the paper's size": PAPER, "the demo's size": {**PAPER, "width": 128}}
#: Steps of the GRU in one turn of its loops, tried there.
UNROLLED = [1, 8, 16]
#: At the paper's size, by the kind of device: of the step, and largest ratios to torch.
STEP = {
    "cpu": Target("fraction_of_peak", 0.65),
    "gpu": Target("milliseconds", 5, at_least=False),
}
RATIOS = {"cpu": {"step": 0.85, "context": 0.6, "criterion": 0.45}, "gpu": {"step": 1 / 3}}
CASES = {
    "step": "whole step",
    "encoder": "encoder",
    "context": "GRU",
    "criterion": "criterion over all candidates, predictions included",
}


def torch_rows(device: str, num_rounds: int, num_calls: int, alone: bool) -> list[Row]:
    """Rows of both sizes; one says how to get torch's where there is none.

    Ours are then measured `alone`, or not at all.
    """
    python, rows = find_torch(device), []
    if python is None:
        text = f"not measured: no torch is here that drives {device}: name its Python in ${PYTHON}"
        rows.append(Row("against PyTorch", {"measured": False}, text))
        if not alone:
            return rows
    for size, sizes in SIZES.items():
        more = {"unrolled": []} if device == "cpu" else {**WHOLE, "unrolled": UNROLLED}
        given = json.dumps({**sizes, **more, "device": device, "num_calls": num_calls})
        rounds = []
        for i in range(num_rounds):
            sides = {"cpc_jax": sys.executable, **({"cpc_torch": python} if python else {})}
            order = list(sides) if i % 2 == 0 else list(sides)[::-1]  # who comes second is warmer
            rounds.append({side: run_side(sides[side], side, given) for side in order})
        step, ratios = None, {}
        if sizes is PAPER:
            step, ratios = STEP.get(device), RATIOS.get(device, {})
        for case, title in CASES.items():
            name, target = f"{title}, {size}", step if case == "step" else None
            rows.append(own_row(name, case, rounds, target))
            if python:
                rows.append(
                    ratio_row(f"{title} to torch's, {size}", case, rounds, ratios.get(case))
                )
        rows += [unrolled_row(f"GRU, {size}", count, rounds) for count in more["unrolled"]]
    return rows


def find_torch(device: str) -> str | None:
    """The Python whose torch drives the device: that of `$CPC_TORCH_PYTHON`, or this one."""
    named = os.environ.get(PYTHON)
    python = named or (sys.executable if importlib.util.find_spec("torch") else None)
    if device == "cpu" or python is None:
        return python
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    drives = device == "gpu" and not subprocess.run([python, "-c", code], check=False).returncode
    return python if drives else None


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


def own_row(name: str, case: str, rounds: list[dict[str, Any]], target: Target | None) -> Row:
    """Of a case our time, work, fraction of the product's rate and, of the step, memory."""
    ours = [one["cpc_jax"] for one in rounds]
    flop = ours[0]["flop"]
    fractions = [
        flop[case] / one["seconds"][case] * one["seconds"]["product"] / flop["product"]
        for one in ours
    ]
    figures: dict[str, Any] = {
        "milliseconds": 1e3 * statistics.median(one["seconds"][case] for one in ours),
        "gflop": flop[case] / 1e9,
        "fraction_of_peak": statistics.median(fractions),
    }
    text = "{:.1f} ms, {:.2f} GFLOP, {:.2f} of peak".format(*figures.values())
    if case == "step":
        figures["peak_megabytes"] = statistics.median(one["peak_bytes"] for one in ours) / 1e6
        text += f", {figures['peak_megabytes']:,.0f} MB"
    return Row(name, figures, text, target)


def unrolled_row(name: str, count: int, rounds: list[dict[str, Any]]) -> Row:
    """The GRU by so many steps in one turn of its loops."""
    case = f"{count} steps at once"
    milliseconds = 1e3 * statistics.median(one["cpc_jax"]["seconds"][case] for one in rounds)
    return Row(f"{name}, {case}", {"milliseconds": milliseconds}, f"{milliseconds:.1f} ms")


def ratio_row(name: str, case: str, rounds: list[dict[str, Any]], most: float | None) -> Row:
    """Of a case the ratio of our time to torch's, round by round, and torch's memory."""
    ratios = [one["cpc_jax"]["seconds"][case] / one["cpc_torch"]["seconds"][case] for one in rounds]
    others = [one["cpc_torch"] for one in rounds]
    figures: dict[str, Any] = {
        "ratio_to_torch": statistics.median(ratios),
        "ratio_to_torch_min": min(ratios),
        "ratio_to_torch_max": max(ratios),
        "torch": others[0]["version"],
    }
    text = "{:.2f} of torch's ({:.2f} to {:.2f})".format(*figures.values())
    if case == "step":
        figures["torch_peak_megabytes"] = (
            statistics.median(one["peak_bytes"] for one in others) / 1e6
        )
        text += f"; torch {figures['torch_peak_megabytes']:,.0f} MB"
    target = Target("ratio_to_torch", most, at_least=False) if most else None
    return Row(name, figures, text, target)
