"""Timings that alternate between cases, and rows of their table, without JAX or torch."""

import json
import pathlib
import resource
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

#: Environment of both processes in a comparison, which keeps freed memory and uses huge pages.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "60000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class Row(NamedTuple):
    """A line of the table: named figures (numbers), their text, and a target for one of them."""

    name: str
    figures: dict[str, Any]
    text: str
    target: str = ""
    """Target such as "seconds <= 5", or "" if there is none."""

    def is_met(self) -> bool:
        """Return whether the figure meets its target."""
        figure, relation, bound = self.target.split()
        over = self.figures[figure] - float(bound)
        return bool(over >= 0 if relation == ">=" else over <= 0)


def describe(row: Row) -> dict[str, Any]:
    """Return the JSON object of a row."""
    verdict = {"target": row.target, "met": row.is_met()} if row.target else {}
    return {"name": row.name, **row.figures, **verdict}


def format_table(rows: Sequence[Row]) -> str:
    """Format one line per row, with name, figures, target and verdict."""
    widths = [max(len(row.name) for row in rows), max(len(row.text) for row in rows)]
    lines = []
    for row in rows:
        verdict = f"{row.target}: {'met' if row.is_met() else 'MISSED'}" if row.target else ""
        lines.append(f"{row.name:<{widths[0]}}  {row.text:<{widths[1]}}  {verdict}".rstrip())
    return "\n".join(lines)


def time_rounds(
    cases: Mapping[str, Callable[[], Any]], num_rounds: int, num_calls: int = 1
) -> dict[str, list[float]]:
    """Time each case in each round by the median of its calls, after two calls that compile.

    The speed of a machine drifts by more than the difference between two cases, so cases alternate,
    and only times of the same round may be divided. A call must wait for its result.
    """
    for call in cases.values():
        call()
        call()
    seconds = {name: [] for name in cases}
    for _ in range(num_rounds):
        for name, call in cases.items():
            times = timeit.repeat(call, repeat=num_calls, number=1, timer=time.perf_counter)
            seconds[name].append(statistics.median(times))
    return seconds


def median_times(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Return each case's median time over rounds."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Divide the times of two cases round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def summarize(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the median and the range of a figure over rounds."""
    low, high = min(values), max(values)
    return {name: statistics.median(values), f"{name}_min": low, f"{name}_max": high}


def work_row(
    name: str,
    seconds: Sequence[float],
    product_seconds: Sequence[float],
    flop: tuple[int, int],
    target: str = "",
) -> Row:
    """Return a case's time, FLOP and rate, and its rate as a fraction of the product's.

    `flop` contains the operations of the case and of the product.
    """
    work, median = flop[0], statistics.median(seconds)
    fractions = [work / flop[1] * one for one in ratios(product_seconds, seconds)]
    figures = {
        "milliseconds": 1e3 * median,
        "gflop": work / 1e9,
        "gflop_per_second": work / median / 1e9,
        **summarize("fraction_of_peak", fractions),
    }
    text = "{:.1f} ms, {:.2f} GFLOP, {:.0f} GFLOP/s, {:.2f} of peak ({:.2f} to {:.2f})"
    return Row(name, figures, text.format(*figures.values()), target)


def read_sizes() -> dict[str, Any]:
    """Parse the sizes that the bench passes to a process as its only argument."""
    return json.loads(sys.argv[1])


def peak_bytes(device: Any = None) -> int:
    """Return the peak memory of a JAX device, or of this process if the device records none."""
    if given := device and device.memory_stats():
        return given["peak_bytes_in_use"]
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # on Linux, getrusage includes the parent's memory at the fork
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
